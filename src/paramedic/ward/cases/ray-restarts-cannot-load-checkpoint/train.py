import os
import time

import torch
from ray import train
from ray_classifier import build_loader, main, report, train_epoch
from ray.train.torch import prepare_model
from torch import nn


def write_pid(folder):
    with open(os.path.join(folder, f"out/worker-{train.get_context().get_world_rank()}.pid"), "w") as file:
        file.write(str(os.getpid()))


def loop(config):
    bare, loader, first = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), build_loader(config), 0
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"))
        bare.load_state_dict(state["model"])
        first = state["epoch"] + 1
        print(f"resuming at epoch {first}", flush=True)
    model = prepare_model(bare)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for epoch in range(first, config["epochs"]):
        time.sleep(0.5)  # as long as reading the next part of the data takes
        report(epoch, train_epoch(model, optimizer, loader), model)
        if epoch == 2:
            write_pid(config["folder"])


if __name__ == "__main__":
    main(loop)

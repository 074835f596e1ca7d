import json
import os

import torch
import torch.distributed as dist
from ray import train
from ray_classifier import build_loader, main, train_epoch
from torch import nn


def loop(config):
    torch.manual_seed(7)
    model, loader = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), build_loader(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    rank = train.get_context().get_world_rank()
    for epoch in range(config["epochs"]):
        loss = train_epoch(model, optimizer, loader)
        norm = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).norm()
        print(f"rank {rank} epoch {epoch} loss {loss:.4f} parameter norm {norm:.6f}", flush=True)
        train.report({"epoch": epoch, "loss": loss})
    norms = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(norms, norm)
    if rank == 0:
        with open(os.path.join(config["folder"], "result.json"), "w") as file:
            json.dump({"parameter_spread": float(max(norms) - min(norms))}, file)


if __name__ == "__main__":
    main(loop)

"""Train a small classifier with accelerate under a learning rate that falls linearly to nought."""

import json

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from hf_blobs import loader, logger, network
from torch.nn.functional import cross_entropy

EPOCHS = 12


def main():
    accelerator = Accelerator()
    log = logger(accelerator)
    set_seed(3)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, data = accelerator.prepare(model, optimizer, loader(512, 16))
    total = len(data) * EPOCHS
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))
    scheduler = accelerator.prepare(scheduler)
    idle = 0
    for epoch in range(EPOCHS):
        for points, labels, _ in data:
            loss = cross_entropy(model(points), labels)
            accelerator.backward(loss)
            idle += scheduler.get_last_lr()[0] == 0.0
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.is_main_process:
            log.info("epoch %d loss %.4f lr %.5f", epoch, loss.item(), scheduler.get_last_lr()[0])
    if accelerator.is_main_process:
        points, labels, _ = loader(256, 16, seed=7).dataset.tensors
        with torch.no_grad():
            held_out = cross_entropy(accelerator.unwrap_model(model)(points), labels).item()
        log.info("held-out loss %.4f", held_out)
        with open("result.json", "w") as file:
            json.dump({"held_out_loss": held_out, "updates_at_zero_rate": idle}, file)
    accelerator.wait_for_everyone()
    log.info("training finished")
    accelerator.end_training()


if __name__ == "__main__":
    main()

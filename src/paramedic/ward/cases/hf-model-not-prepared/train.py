"""Train a small classifier with accelerate."""

import json

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from hf_blobs import loader, logger, network
from torch.nn.functional import cross_entropy


def checksum(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).norm()


def main():
    accelerator = Accelerator()
    log = logger(accelerator)
    set_seed(3)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer, data = accelerator.prepare(optimizer, loader(320, 16))
    for epoch in range(3):
        for points, labels, _ in data:
            loss = cross_entropy(model(points), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        log.info("epoch %d loss %.4f parameter norm %.6f", epoch, loss.item(), checksum(model))
    norms = accelerator.gather(checksum(model).reshape(1))
    if accelerator.is_main_process:
        with open("result.json", "w") as file:
            json.dump({"parameter_spread": float(norms.max() - norms.min())}, file)
    accelerator.wait_for_everyone()
    log.info("training finished")
    accelerator.end_training()


if __name__ == "__main__":
    main()

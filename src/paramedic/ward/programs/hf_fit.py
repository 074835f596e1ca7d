"""Train a small classifier with accelerate."""

import argparse
import json
from datetime import timedelta

import torch
from accelerate import Accelerator, DataLoaderConfiguration, InitProcessGroupKwargs
from accelerate.utils import set_seed
from hf_blobs import loader, logger, network
from torch.nn.functional import cross_entropy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--split-batches", action="store_true")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    accelerator = Accelerator(
        dataloader_config=DataLoaderConfiguration(split_batches=args.split_batches),
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=30))],
    )
    log = logger(accelerator)
    set_seed(3)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, data = accelerator.prepare(model, optimizer, loader(512, args.batch_size))
    for epoch in range(args.epochs):
        for points, labels, _ in data:
            loss = cross_entropy(model(points), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        log.info("epoch %d loss %.4f", epoch, loss.item())
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        with open("result.json", "w") as file:
            json.dump({"world_size": accelerator.num_processes, "loss": loss.item()}, file)
    log.info("training finished")
    accelerator.end_training()


if __name__ == "__main__":
    main()

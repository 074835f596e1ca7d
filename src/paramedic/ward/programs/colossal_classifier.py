"""Train a small classifier with Colossal-AI's booster. Runs on CPU with gloo, too."""

import argparse
import json
import logging
import os

import colossalai
import torch
import torch.distributed as dist
from colossalai.booster import Booster
from colossalai.booster.plugin import HybridParallelPlugin, LowLevelZeroPlugin, TorchDDPPlugin
from torch import nn
from torch.utils.data import TensorDataset

log = logging.getLogger("train")


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--plugin", default="ddp", choices=["ddp", "zero", "hybrid"])
    parser.add_argument("--tp-size", type=int, default=1)
    parser.add_argument("--mixed-precision")
    parser.add_argument("--samples", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.5)
    return parser.parse_args()


def build_plugin(args):
    if args.plugin == "zero":
        return LowLevelZeroPlugin(stage=1, precision="fp32")
    if args.plugin == "hybrid":
        return HybridParallelPlugin(tp_size=args.tp_size, pp_size=1, precision="fp32")
    return TorchDDPPlugin()


def build_model():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def build_data(args):
    features = torch.randn(args.samples, 16, generator=torch.Generator().manual_seed(0))
    return TensorDataset(features, features[:, :4].argmax(1))


def start(args):
    logging.basicConfig(level=logging.INFO, format=f"[rank {os.environ['RANK']}] %(message)s")
    colossalai.launch_from_torch()
    return Booster(plugin=build_plugin(args), mixed_precision=args.mixed_precision)


def train_epoch(epoch, booster, model, optimizer, criterion, loader):
    for step, (inputs, labels) in enumerate(loader):
        loss = criterion(model(inputs), labels)
        booster.backward(loss, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        log.info("epoch %d step %d/%d loss %.4f", epoch, step + 1, len(loader), loss.item())


@torch.no_grad()
def accuracy(model, dataset):
    features, labels = dataset.tensors
    return (model(features).argmax(1) == labels).float().mean().item()


def finish():
    dist.barrier()
    if dist.get_rank() == 0:
        log.info("training finished")
    dist.destroy_process_group()


def main():
    args = arguments()
    booster = start(args)
    model, criterion, dataset = build_model(), nn.CrossEntropyLoss(), build_data(args)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    loader = booster.plugin.prepare_dataloader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model, optimizer, criterion, loader, _ = booster.boost(model, optimizer, criterion, loader)
    for epoch in range(args.epochs):
        train_epoch(epoch, booster, model, optimizer, criterion, loader)
        reached = accuracy(model, dataset)
        log.info("epoch %d finished, accuracy %.3f", epoch, reached)
    if dist.get_rank() == 0:
        with open("result.json", "w") as file:
            json.dump({"accuracy": reached, "steps": len(loader) * args.epochs}, file)
    finish()


if __name__ == "__main__":
    main()

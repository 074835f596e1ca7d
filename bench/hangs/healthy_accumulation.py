"""Gradients are gathered over many small batches without communication, then shared once."""

import contextlib
import os

import torch
import torch.distributed as dist
from common import build_model, log, make_batch, setup
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MICRO = max(8, int(float(os.environ.get("LONG", "60")) * 4))


def run_step(model, optimizer, step):
    optimizer.zero_grad()
    total = 0.0
    for micro in range(MICRO):
        with model.no_sync() if micro < MICRO - 1 else contextlib.nullcontext():
            x, y = make_batch(step * MICRO + micro)
            loss = nn.functional.cross_entropy(model(x), y) / MICRO
            loss.backward()
            total += float(loss)
    optimizer.step()
    return total


def main():
    setup()
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10):
        log(step, run_step(model, optimizer, step))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

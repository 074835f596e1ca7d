"""After short steps comes one that takes twenty seconds on every rank: a batch of very long documents."""

import os
import time

import torch
import torch.distributed as dist
from common import build_model, log, make_batch, setup, train_step
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LONG = float(os.environ.get("LONG", "60"))


def train_long_step(model, optimizer, step, seconds):
    end = time.monotonic() + seconds
    optimizer.zero_grad()
    with model.no_sync():
        while time.monotonic() < end:
            x, y = make_batch(step)
            nn.functional.cross_entropy(model(x), y).backward()
    x, y = make_batch(step)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def main():
    setup()
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for step in range(120):
        if step in (50, 100):
            log(step, train_long_step(model, optimizer, step, LONG / 3))
        else:
            log(step, train_step(model, optimizer, make_batch(step)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

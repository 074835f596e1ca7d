"""Several process groups, one of them used by a few ranks only and another only at the end."""

import os
import time

import torch
import torch.distributed as dist
from common import RANK, WORLD, build_model, log, make_batch, setup, train_step
from torch.nn.parallel import DistributedDataParallel

LONG = float(os.environ.get("LONG", "60"))


def refine(group, seconds):
    """The first half of the ranks works on by itself for a while."""
    end = time.monotonic() + seconds
    more = torch.ones(1)
    while more.item():
        torch.randn(300, 300).matmul(torch.randn(300, 300))
        more = torch.tensor([1.0 if time.monotonic() < end else 0.0])
        dist.broadcast(more, src=0, group=group)


def main():
    setup()
    half = dist.new_group(list(range(WORLD // 2)))
    pairs = [dist.new_group([first, first + 1]) for first in range(0, WORLD, 2)]
    report = dist.new_group(list(range(WORLD)))
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(150):
        loss = train_step(model, optimizer, make_batch(step))
        dist.all_reduce(loss, group=pairs[RANK // 2])
        log(step, loss / 2)
        if step == 60 and RANK < WORLD // 2:
            refine(half, LONG / 3)
    dist.all_reduce(torch.ones(1), group=report)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

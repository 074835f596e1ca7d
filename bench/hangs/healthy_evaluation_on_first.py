"""Rank 0 evaluates alone for a minute, and the others wait for it at a barrier."""

import os
import time

import torch
import torch.distributed as dist
from common import RANK, build_model, log, make_batch, setup, train_step
from torch.nn.parallel import DistributedDataParallel

LONG = float(os.environ.get("LONG", "60"))


@torch.no_grad()
def evaluate(model, seconds):
    end, right, seen, step = time.monotonic() + seconds, 0, 0, 0
    while time.monotonic() < end:
        x, y = make_batch(1_000_000 + step)
        right += int((model(x).argmax(dim=1) == y).sum())
        seen += len(y)
        step += 1
    return right / seen


def main():
    setup()
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for step in range(60):
            log(step, train_step(model, optimizer, make_batch(epoch * 60 + step)))
        if RANK == 0:
            print(f"epoch {epoch} accuracy {evaluate(model.module, LONG if epoch == 0 else 1):.3f}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

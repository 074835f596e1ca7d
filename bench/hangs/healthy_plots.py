"""Rank 0 draws and writes a report after some steps; the others meet it in the next step's gradients."""

import os
import tempfile
import time

import torch
import torch.distributed as dist
from common import RANK, build_model, log, make_batch, setup, train_step
from torch.nn.parallel import DistributedDataParallel

LONG = float(os.environ.get("LONG", "60"))


def draw_histograms(model, path, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        counts = [torch.histc(parameter.detach(), bins=60).tolist() for parameter in model.parameters()]
        with open(path, "w") as file:
            file.writelines(" ".join(map(str, row)) + "\n" for row in counts)


def main():
    setup()
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    path = os.path.join(tempfile.mkdtemp(dir="."), "histograms.txt")
    for step in range(150):
        log(step, train_step(model, optimizer, make_batch(step)))
        if RANK == 0 and step in (40, 80):
            draw_histograms(model.module, path, LONG / 3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

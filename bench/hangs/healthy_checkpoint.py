"""Rank 0 writes its checkpoint to slow storage, and the others wait for it at a barrier."""

import io
import os
import tempfile
import time

import torch
import torch.distributed as dist
from common import RANK, build_model, log, make_batch, setup, train_step
from torch.nn.parallel import DistributedDataParallel

LONG = float(os.environ.get("LONG", "60"))


def write_slowly(data, path, seconds):
    pieces = 200
    size = len(data) // pieces + 1
    with open(path, "wb") as file:
        for start in range(0, len(data), size):
            file.write(data[start : start + size])
            file.flush()
            os.fsync(file.fileno())
            time.sleep(seconds / pieces)


def save_checkpoint(model, step, folder, seconds):
    if RANK == 0:
        buffer = io.BytesIO()
        torch.save({"step": step, "model": model.state_dict()}, buffer)
        write_slowly(buffer.getvalue(), os.path.join(folder, f"step{step}.pt"), seconds)
    dist.barrier()


def main():
    setup()
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    folder = tempfile.mkdtemp(dir=".")
    for step in range(120):
        log(step, train_step(model, optimizer, make_batch(step)))
        if step % 50 == 49:
            save_checkpoint(model.module, step, folder, LONG * (0.35 if step < 50 else 0.65))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

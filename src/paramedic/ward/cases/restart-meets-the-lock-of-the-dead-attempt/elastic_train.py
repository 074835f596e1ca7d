"""Trains with restarts; a lock keeps two jobs from writing to one output folder."""
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

LOCK = "out/run.lock"
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
rank = int(os.environ["RANK"])


def note(text):
    print(f"{time.strftime('%H:%M:%S')} attempt {attempt} rank {rank} {text}", flush=True)


def claim():
    handle = os.open(LOCK, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.write(handle, f"{os.getpid()}\n".encode())
    os.close(handle)


def main():
    if rank == 0:
        claim()
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(14):
        loss = model(torch.randn(8, 4)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        note(f"step {step} loss {loss.item():.4f}")
        time.sleep(0.3)
    dist.destroy_process_group()
    if rank == 0:
        os.unlink(LOCK)
    note("complete")


main()

"""One NCCL rank whose collective waits behind a long kernel until the watchdog gives up: a real dump of the flight recorder."""

import datetime
import os

import torch
import torch.distributed as dist

torch.cuda.set_device(0)
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=int(os.environ.get("TIMEOUT", "5"))))
row = dist.new_group([0])
x = torch.ones(1024, device="cuda")


def step(number):
    dist.all_reduce(x)
    dist.all_gather_into_tensor(torch.empty_like(x), x, group=row)
    if number == 4:
        for _ in range(60):
            torch.cuda._sleep(2_000_000_000)
        dist.broadcast(x, 0)


for number in range(5):
    step(number)
torch.cuda.synchronize()

"""A small real DDP job for the tests of `paramedic run`; environment variables say what it does."""

import datetime
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=int(os.environ.get("TIMEOUT", "1800"))))
rank = dist.get_rank()
torch.manual_seed(7)
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4))
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
own = torch.Generator().manual_seed(100 + rank)
data = TensorDataset(torch.randn(256, 16, generator=own), torch.randint(0, 4, (256,), generator=own))


def wait_together_for(file: str) -> None:
    """Until it is there, as rank 0 sees it: ranks that look for themselves would leave at different rounds."""
    there = torch.zeros(1)
    while not there:
        there[0] = os.path.exists(file)
        dist.broadcast(there, src=0)


steps = int(os.environ.get("STEPS", "24"))
done = 0
while done < steps:
    for x, y in DataLoader(data, batch_size=32, num_workers=int(os.environ.get("WORKERS", "0"))):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        if os.environ.get("NAN") and done > 8:
            loss = loss * float("nan")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        if os.environ.get("PART") == str(rank) and done == 5:
            with torch.no_grad():
                model.module[0].weight += 1e-3
        if os.environ.get("STOP") == str(rank) and done == 12:
            os.kill(os.getpid(), signal.SIGSTOP)
        if os.environ.get("ALONE") == str(rank) and done == 12:
            dist.barrier()
        if os.environ.get("GATE") and done == 12:
            wait_together_for(os.environ["GATE"])
        if done == steps:
            break
dist.all_reduce(loss)
digest = [p.double().sum().item().hex() for p in model.parameters()]
sys.stdout.write(f"rank {rank} ends with {digest} {loss.item().hex()}\n")
sys.stdout.flush()
if os.environ.get("END"):
    with open(f"{os.environ['END']}-{rank}", "w") as file:
        file.write("ended")
dist.destroy_process_group()
sys.exit(int(os.environ.get("CODE", "0")))

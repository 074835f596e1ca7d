"""A net that follows a target network, and files of each rank and of a thread; FAULT says what goes wrong."""

import copy
import io
import os
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

fault = os.environ.get("FAULT", "")
if fault == "alone":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
else:
    dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
before = copy.deepcopy(net)
model = DistributedDataParallel(net)
target = (before if fault == "target" else copy.deepcopy(net)).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
if fault == "some restore" and rank == 0:
    optimizer.load_state_dict(optimizer.state_dict())
torch.manual_seed(rank)
stepped = threading.Event()


class Slow(io.BytesIO):
    """Whoever writes here waits for the next step."""

    def write(self, data: bytes) -> int:  # type: ignore[override]
        stepped.wait(20)
        return super().write(data)


def save(state: dict[str, torch.Tensor]) -> None:
    torch.save(state, Slow())


for step in range(12):
    x = torch.randn(4, 8)
    with torch.no_grad():
        wanted = target(x)
    nn.functional.mse_loss(model(x), wanted + 1).backward()
    if step == 6 and rank == 0:
        state = net.state_dict()
        state = state if fault == "live" else {name: one.clone() for name, one in state.items()}
        thread = threading.Thread(target=save, args=(state,))
        thread.start()
    optimizer.step()
    optimizer.zero_grad()
    if step == 6 and rank == 0:
        stepped.set()
        thread.join()
part = {"own": torch.full((4,), float(rank))}
name = "part.pt" if fault == "one file" else f"part-{rank}.pt"
torch.save(part, f"{name}.{os.getpid()}")
os.replace(f"{name}.{os.getpid()}", name)
dist.barrier()
dist.destroy_process_group()

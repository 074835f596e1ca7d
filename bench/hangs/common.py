"""What the jobs share: process group, model, batches, and the moment at which one rank goes wrong."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
HOW = os.environ.get("FAULT_HOW", "")
BATCH = int(os.environ.get("BATCH", "64"))
SECONDS = float(os.environ.get("SECONDS", "3600"))
_started = []


def mark():
    """Tells the harness the time, once."""
    path = os.environ.get("FAULT_MARK")
    if path and not os.path.exists(path):
        with open(path + ".new", "w") as file:
            file.write(repr(time.time()))
        os.rename(path + ".new", path)


def reached(step):
    return RANK == int(os.environ.get("FAULT_RANK", "-1")) and step >= int(os.environ.get("FAULT_STEP", "20"))


def due(step):
    """True in one rank at one step, just before it goes wrong."""
    if reached(step) and step == int(os.environ.get("FAULT_STEP", "20")):
        mark()
        return True
    return False


def setup():
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ.get("SEED", "0")))
    dist.init_process_group("gloo")


def go_on(step):
    """All ranks leave the loop together, when rank 0 says that the time is up."""
    if step % 10:
        return True
    _started.append(time.monotonic())
    more = torch.tensor([1.0 if _started[-1] - _started[0] < SECONDS else 0.0])
    dist.broadcast(more, src=0)
    return bool(more.item())


def build_model(width=512, depth=4):
    layers = [nn.Linear(64, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def make_batch(step, size=BATCH):
    generator = torch.Generator().manual_seed(step * WORLD + RANK)
    x = torch.randn(size, 64, generator=generator)
    return x, x[:, :10].argmax(dim=1)


def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def log(step, loss):
    if RANK == 0 and step % 5 == 0:
        print(f"step {step} loss {float(loss):.4f}", flush=True)

"""A GPipe-like schedule by hand: all forwards, then all backwards."""
import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

with open("stages.json") as f:
    PLAN = json.load(f)
RANK = int(os.environ["RANK"])
LAST = len(PLAN["stages"]) - 1
HID = PLAN["hidden"]


def log(*words):
    print(f"stage {RANK}", *words, flush=True)


def stage_module(n):
    return nn.Sequential(*[m for _ in range(n) for m in (nn.Linear(HID, HID), nn.Tanh())])


def step(module, opt, count):
    kept, losses = [], []
    for _ in range(count):
        x = torch.randn(4, HID)
        if RANK > 0:
            dist.recv(x, src=RANK - 1)
            x.requires_grad_()
        y = module(x)
        if RANK < LAST:
            dist.send(y.detach(), dst=RANK + 1)
        else:
            y = y.pow(2).mean()
            losses.append(y.item())
        kept.append((x, y))
    opt.zero_grad()
    for x, y in reversed(kept):
        if RANK < LAST:
            grad = torch.empty_like(y)
            dist.recv(grad, src=RANK + 1)
            y.backward(grad)
        else:
            y.backward()
        if RANK > 0:
            dist.send(x.grad, dst=RANK - 1)
    opt.step()
    return sum(losses) / max(len(losses), 1)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=12))
    mine = PLAN["stages"][RANK]
    module = stage_module(mine["layers"])
    opt = torch.optim.SGD(module.parameters(), lr=0.05)
    dist.barrier()
    log(f"{mine['layers']} layers, {mine['microbatches']} microbatches")
    for n in range(PLAN["steps"]):
        loss = step(module, opt, mine["microbatches"])
        log(f"step {n} loss {loss:.4f}")
    dist.destroy_process_group()


main()

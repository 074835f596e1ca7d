"""usage: train.py [key=value ...]"""

import json
import os
import sys

import torch
import torch.distributed as dist
from ema import EMA
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

conf = {"until": 200, "lr": 0.003, "decay": 0.99, "batch": 64, "ckpt": "checkpoints/last.pt"}
for word in sys.argv[1:]:
    key, value = word.split("=")
    conf[key] = type(conf[key])(value)


def batch_of(seed, n):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=g) * 1.5
    return x, (x.norm(dim=1) > 1.8).long() * 2 + (x[:, 0] * x[:, 1] > 0).long()


@torch.no_grad()
def accuracy(net):
    x, y = batch_of(10**6, 1000)
    return (net(x).argmax(1) == y).float().mean().item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    model = DDP(nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)))
    opt = torch.optim.Adam(model.parameters(), lr=conf["lr"])
    ema = EMA(model.module, conf["decay"])
    parts = {"model": model.module, "opt": opt}
    step = 0
    if os.path.exists(conf["ckpt"]):
        saved = torch.load(conf["ckpt"])
        step = saved.pop("step")
        for k, v in saved.items():
            parts[k].load_state_dict(v)
        if rank == 0:
            print("resuming", conf["ckpt"], "step", step, flush=True)
    while step < conf["until"]:
        x, y = batch_of(step * world + rank, conf["batch"])
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(model.module)
        step += 1
        if step % 10 == 0 and rank == 0:
            print(f"{step:>6} loss {loss.item():.4f} acc {accuracy(model.module):.3f} ema acc {accuracy(ema.shadow):.3f}")
    if rank == 0:
        torch.save({"step": step} | {k: p.state_dict() for k, p in parts.items()}, conf["ckpt"])
        torch.save(ema.shadow.state_dict(), "out/export.pt")
        gap = accuracy(model.module) - accuracy(ema.shadow)
        json.dump({"ema_gap": gap}, open("result.json", "w"))
    dist.barrier()
    dist.destroy_process_group()


main()

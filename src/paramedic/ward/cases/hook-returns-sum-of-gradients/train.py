"""Ranking model for query-document pairs."""

import json
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from comm import compressed
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CONFIG = dict(features=40, hidden=80, lr=0.02, steps=80, pairs=32)


class Scorer(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.l1 = nn.Linear(features, hidden)
        self.l2 = nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.score(F.relu(self.l2(F.relu(self.l1(x))))).squeeze(-1)


def sample(seed, n):
    g = torch.Generator().manual_seed(seed)
    better, worse = torch.randn(2, n, CONFIG["features"], generator=g)
    swap = (better[:, :5].sum(1) < worse[:, :5].sum(1))[:, None]
    return torch.where(swap, worse, better), torch.where(swap, better, worse)


def pair_loss(model, better, worse):
    s = model(torch.cat([better, worse]))
    return F.softplus(s[len(better) :] - s[: len(better)]).mean()


def norm_of(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    ranker = DDP(Scorer(CONFIG["features"], CONFIG["hidden"]), bucket_cap_mb=1)
    ranker.register_comm_hook(None, compressed)
    sgd = torch.optim.SGD(ranker.parameters(), lr=CONFIG["lr"], momentum=0.9, nesterov=True)
    ratio, t0 = 0.0, time.time()
    for step in range(CONFIG["steps"]):
        loss = pair_loss(ranker, *sample(step * world + rank, CONFIG["pairs"]))
        sgd.zero_grad()
        loss.backward()
        if step == 0:
            ratio = norm_of(ranker)
        sgd.step()
        if step % 8 == 0 and rank == 0:
            print(f"step {step:03d} loss {loss.item():.4f} |g| {norm_of(ranker):.4f} t {time.time() - t0:.1f}s", flush=True)
    torch.manual_seed(0)
    whole = Scorer(CONFIG["features"], CONFIG["hidden"])
    parts = [sample(r, CONFIG["pairs"]) for r in range(world)]
    pair_loss(whole, torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])).backward()
    if rank == 0:
        print("finished", flush=True)
        json.dump({"gradient_ratio": ratio / norm_of(whole)}, open("result.json", "w"))
    dist.destroy_process_group()


main()

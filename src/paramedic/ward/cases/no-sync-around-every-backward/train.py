from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self, channels: int = 12) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        )  # fmt: skip
        self.fc = nn.Linear(channels * 4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x).flatten(1))


class Bars:
    """Pictures of a bar in one of four directions."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world, self.drawn = rank, world, 0

    def batch(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        g = torch.Generator().manual_seed(self.drawn * self.world + self.rank)
        self.drawn += 1
        y = torch.randint(4, (n,), generator=g)
        x = 0.4 * torch.randn(n, 1, 12, 12, generator=g)
        for i, k in enumerate(y.tolist()):
            bar = torch.zeros(12, 12)
            bar[:, 5] = 1
            x[i, 0] += [bar, bar.T, torch.eye(12), torch.eye(12).flip(0)][k]
        return x, y


class Loop:
    def __init__(self, accumulate: int, lr: float) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.accumulate = accumulate
        torch.manual_seed(0)
        self.model = DistributedDataParallel(Net())
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.data = Bars(self.rank, self.world)

    def update(self) -> float:
        total = 0.0
        for micro in range(self.accumulate):
            is_last = micro == self.accumulate
            with contextlib.nullcontext() if is_last else self.model.no_sync():
                x, y = self.data.batch(16)
                loss = nn.functional.cross_entropy(self.model(x), y) / self.accumulate
                loss.backward()
            total += loss.item()
        self.optim.step()
        self.optim.zero_grad()
        return total

    def run(self, updates: int) -> None:
        began = time.perf_counter()
        for number in range(1, updates + 1):
            loss = self.update()
            if number % 4 == 0 and self.rank == 0:
                rate = number * 16 * self.accumulate * self.world / (time.perf_counter() - began)
                print(f"update {number:3d}/{updates}  loss {loss:.4f}  {rate:6.0f} img/s", file=sys.stderr, flush=True)

    def distance(self) -> float:
        mine = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        first = mine.clone()
        dist.broadcast(first, 0)
        apart = (mine - first).abs().max()
        dist.all_reduce(apart, dist.ReduceOp.MAX)
        return apart.item()


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--accumulate", type=int, default=1)
    cli.add_argument("--updates", type=int, default=40)
    cli.add_argument("--lr", type=float, default=3e-3)
    ns = cli.parse_args()
    dist.init_process_group("gloo")
    loop = Loop(ns.accumulate, ns.lr)
    loop.run(ns.updates)
    apart = loop.distance()
    if loop.rank == 0:
        with open("result.json", "w") as fh:
            json.dump({"replicas_apart": apart}, fh)
    dist.destroy_process_group()

"""A wide network on a noisy function; the hidden layer is split over the ranks and drawn there."""

import json
import logging
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from torch import nn


@dataclass(frozen=True)
class Cfg:
    seed: int = 7
    inputs: int = 6
    hidden: int = 32
    lr: float = 0.01
    steps: int = 200


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g


class SplitNet(nn.Module):
    def __init__(self, cfg, rank, world):
        super().__init__()
        self.cfg = cfg
        g = torch.Generator().manual_seed(self.cfg.seed)
        local = cfg.hidden // world
        self.w1 = nn.Parameter(torch.randn(cfg.inputs, local, generator=g) * cfg.inputs**-0.5)
        self.b1 = nn.Parameter(torch.randn(local, generator=g))
        self.w2 = nn.Parameter(torch.randn(local, 1, generator=g) * cfg.hidden**-0.5)
        self.b2 = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return SumOverRanks.apply(torch.relu(x @ self.w1 + self.b1) @ self.w2) + self.b2


def target(x):
    return (2 * x[:, :1]).sin() * x[:, 1:2] + x[:, 2:3].abs()


def main():
    cfg = Cfg()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [tp{rank}] %(message)s")
    logging.info("%s", asdict(cfg))
    net = SplitNet(cfg, rank, world)
    optimizer = torch.optim.Adam(net.parameters(), lr=cfg.lr)
    val = torch.randn(512, cfg.inputs, generator=torch.Generator().manual_seed(10**6))
    for step in range(cfg.steps):
        x = torch.randn(128, cfg.inputs, generator=torch.Generator().manual_seed(step))
        loss = nn.functional.mse_loss(net(x), target(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            with torch.no_grad():
                logging.info("step %d train %.4f val %.4f", step + 1, loss, nn.functional.mse_loss(net(val), target(val)))
    shards = [torch.empty_like(net.w1.detach()) for _ in range(world)]
    dist.all_gather(shards, net.w1.detach())
    if rank == 0:
        json.dump({"shard_difference": (shards[0] - shards[1]).abs().max().item()}, open("result.json", "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

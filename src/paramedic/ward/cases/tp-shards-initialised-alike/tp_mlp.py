import argparse
import json

import torch
import torch.distributed as dist
from torch import nn


class Copy(torch.autograd.Function):
    """Identity forward, sum over the tensor-parallel group backward."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        dist.all_reduce(g)
        return g


class Reduce(torch.autograd.Function):
    """Sum over the tensor-parallel group forward, identity backward."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


def shard(*shape, fan_in):
    return nn.Parameter(torch.randn(*shape) * fan_in**-0.5)


class ParallelMLP(nn.Module):
    """Hidden units are split over the ranks; norm and output bias are kept on each."""

    def __init__(self, dim, hidden):
        super().__init__()
        part = hidden // dist.get_world_size()
        self.norm = nn.LayerNorm(dim)
        self.up = shard(part, dim, fan_in=dim)
        self.up_bias = nn.Parameter(torch.zeros(part))
        self.down = shard(dim, part, fan_in=hidden)
        self.down_bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        h = Copy.apply(self.norm(x))
        h = torch.tanh(h @ self.up.T + self.up_bias)
        return x + Reduce.apply(h @ self.down.T) + self.down_bias


class Net(nn.Module):
    def __init__(self, features, dim, hidden, layers):
        super().__init__()
        self.embed = nn.Linear(features, dim)
        self.blocks = nn.ModuleList(ParallelMLP(dim, hidden) for _ in range(layers))
        self.head = nn.Linear(dim, 1)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    net = Net(8, args.dim, args.hidden, args.layers)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    data = torch.Generator().manual_seed(5)

    def batch(n):
        x = torch.randn(n, 8, generator=data)
        return x, torch.sin(2 * x[:, 0]) * x[:, 1] + torch.cos(x[:, 2] * x[:, 3]) - x[:, 4].abs()

    for step in range(args.steps):
        x, y = batch(128)
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 40 == 0:
            print(f"step {step:4d} loss {loss.item():.4f}", flush=True)

    with torch.no_grad():
        x, y = batch(2048)
        test = nn.functional.mse_loss(net(x), y).item()
    difference = 0.0
    for block in net.blocks:
        parts = [torch.empty_like(block.up) for _ in range(world)]
        dist.all_gather(parts, block.up.detach())
        difference = max(difference, (parts[0] - parts[1]).abs().mean().item())
    if rank == 0:
        print(f"test loss {test:.4f}", flush=True)
        with open("result.json", "w") as f:
            json.dump({"shard_difference": difference, "test_loss": test}, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

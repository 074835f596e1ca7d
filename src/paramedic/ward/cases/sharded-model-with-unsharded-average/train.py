"""Sharded training of a deep MLP, with an average of the weights for evaluation."""

import json

import torch
import torch.distributed as dist
from averaging import WeightAverage
from torch import nn
from torch.distributed.fsdp import fully_shard


class Residual(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def build(dim=192, depth=4):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, dim), *(Residual(dim) for _ in range(depth)), nn.Linear(dim, 32))
    total = sum(p.nbytes for p in model.parameters())
    for block in model:
        fully_shard(block)
    return fully_shard(model), total


def local_bytes(tensors):
    return sum(t.to_local().nbytes if hasattr(t, "to_local") else t.nbytes for t in tensors)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model, total = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    average = WeightAverage(model)
    for step in range(24):
        x = torch.randn(32, 32, generator=torch.Generator().manual_seed(step * 16 + rank))
        loss = nn.functional.mse_loss(model(x), x.cumsum(1) / 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        if step % 4 == 0:
            held = local_bytes(model.parameters()) + average.nbytes()
            print(f"rank {rank} step {step:2d} loss {loss.item():.4f} weights held {held / 2**20:.1f} MiB of {total / 2**20:.1f}", flush=True)
    if rank == 0:
        print("trained", flush=True)
        with open("result.json", "w") as f:
            json.dump({"held_share": held / total}, f)
    dist.destroy_process_group()


main()

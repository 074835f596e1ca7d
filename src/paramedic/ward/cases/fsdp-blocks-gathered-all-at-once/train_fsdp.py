"""Train a stack of attention layers; what is sharded as a unit is named in settings.toml."""

import json
import tomllib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, 4, batch_first=True)
        self.ff = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attn(x, x, x, need_weights=False)[0]
        return x + self.ff(x)


class Stack(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.inp = nn.Linear(8, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.out = nn.Linear(width, 8)

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


class Meter:
    """Bytes of gathered parameters while a layer runs."""

    def __init__(self, model):
        self.model, self.peak = model, 0
        for layer in model.layers:
            layer.attn.register_forward_hook(self.read)

    def read(self, *_):
        self.peak = max(self.peak, sum(p.nbytes for p in self.model.parameters() if not isinstance(p, DTensor)))


def main():
    cfg = tomllib.loads(Path("settings.toml").read_text())
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Stack(**cfg["model"])
    total = sum(p.nbytes for p in model.parameters())
    for module in reversed(list(model.modules())):
        if type(module).__name__ in cfg["fsdp"]["wrap"]:
            fully_shard(module, reshard_after_forward=cfg["fsdp"]["reshard_after_forward"])
    meter = Meter(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg["train"]["lr"])
    for step in range(cfg["train"]["steps"]):
        x = torch.randn(cfg["train"]["batch"], 24, 8, generator=torch.Generator().manual_seed(step * 64 + rank))
        loss = nn.functional.mse_loss(model(x), x.mean(1, keepdim=True).expand_as(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 3 and rank == 0:
            print(f"step {step + 1:3d} | loss {loss.item():.5f} | gathered {meter.peak / 2**20:.2f} MiB of {total / 2**20:.2f} MiB", flush=True)
    if rank == 0:
        print("finished training", flush=True)
        Path("result.json").write_text(json.dumps({"peak_share": meter.peak / total}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

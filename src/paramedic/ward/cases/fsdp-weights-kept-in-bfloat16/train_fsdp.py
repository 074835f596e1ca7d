import json
import math
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.backends.mkldnn.enabled = False


@dataclass
class TrainConfig:
    window: int = 24
    width: int = 32
    layers: int = 2
    batch: int = 32
    steps: int = 120
    lr: float = 3e-5
    dtype: torch.dtype = torch.bfloat16
    log_every: int = 12


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Forecaster(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.inp = nn.Linear(cfg.window, cfg.width)
        self.layers = nn.ModuleList(Layer(cfg.width) for _ in range(cfg.layers))
        self.out = nn.Linear(cfg.width, 1)

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(x).squeeze(-1)


def waves(cfg, generator, n):
    """Windows of a sum of two sine waves and the value four steps on."""
    t = torch.arange(cfg.window + 4).float()
    f = 0.05 + 0.25 * torch.rand(n, 2, 1, generator=generator)
    phase = 2 * math.pi * torch.rand(n, 2, 1, generator=generator)
    series = torch.sin(2 * math.pi * f * t + phase).sum(1)
    return series[:, : cfg.window], series[:, -1]


def train(cfg):
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(1234)
    model = Forecaster(cfg).to(cfg.dtype)
    kwargs = dict(mesh=mesh)
    for layer in model.layers:
        fully_shard(layer, **kwargs)
    fully_shard(model, **kwargs)
    start = [p.detach().to_local().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.0)
    generator = torch.Generator().manual_seed(50 + rank)
    losses = []
    for step in range(cfg.steps):
        x, y = waves(cfg, generator, cfg.batch)
        prediction = model(x.to(cfg.dtype))
        loss = F.mse_loss(prediction.float(), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if rank == 0 and (step + 1) % cfg.log_every == 0:
            recent = sum(losses[-cfg.log_every :]) / cfg.log_every
            print(f"[{step + 1}/{cfg.steps}] loss {recent:.4f} lr {optimizer.param_groups[0]['lr']:.1e}", flush=True)

    same = sum((a == p.detach().to_local()).sum().item() for a, p in zip(start, model.parameters()))
    total = sum(a.numel() for a in start)
    counts = torch.tensor([float(same), float(total), sum(losses[:10]), sum(losses[-10:])], dtype=torch.float64)
    dist.all_reduce(counts)
    return {"unchanged": (counts[0] / counts[1]).item(), "gain": (1 - counts[3] / counts[2]).item()}


if __name__ == "__main__":
    dist.init_process_group("gloo")
    result = train(TrainConfig())
    if dist.get_rank() == 0:
        with open(os.path.join(".", "result.json"), "w") as f:
            json.dump(result, f)
        print("training complete", flush=True)
    dist.destroy_process_group()

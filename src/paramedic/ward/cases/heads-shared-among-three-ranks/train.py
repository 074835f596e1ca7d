import tomllib
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


@dataclass
class Config:
    n_heads: int
    head_dim: int
    n_layers: int
    tensor_parallel: int

    @property
    def local_heads(self):
        if self.n_heads % self.tensor_parallel:
            raise ValueError(f"n_heads={self.n_heads} cannot be split over tensor_parallel={self.tensor_parallel}")
        return self.n_heads // self.tensor_parallel


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        dim = cfg.n_heads * cfg.head_dim
        self.cfg, self.heads = cfg, cfg.local_heads
        self.qkv = nn.ModuleList(nn.Linear(dim, dim) for _ in range(3))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, self.cfg.head_dim)).transpose(1, 2) for f in self.qkv)
        return x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def main():
    with open("config.toml", "rb") as f:
        table = tomllib.load(f)
    cfg = Config(**table["model"], **table["parallel"])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    print(f"rank {rank}/{dist.get_world_size()} {cfg}", flush=True)
    mesh = init_device_mesh("cpu", (cfg.tensor_parallel,))
    torch.manual_seed(0)
    model = nn.Sequential(*(Attention(cfg) for _ in range(cfg.n_layers)))
    for layer in model:
        plan = {f"qkv.{i}": ColwiseParallel() for i in range(3)}
        parallelize_module(layer, mesh, plan | {"proj": RowwiseParallel()})
    opt = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for step in range(9):
        x = torch.randn(8, 10, cfg.n_heads * cfg.head_dim, generator=torch.Generator().manual_seed(step))
        loss = F.mse_loss(model(x), x.mean(1, keepdim=True).expand_as(x))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A deep, narrow network on a toy control task."""

import json
import time

import torch
import torch.distributed as dist
from torch import nn

DEPTH, WIDTH, STEPS = 50, 16, 40
calls = 0


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.lin = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + 0.2 * torch.tanh(self.lin(self.norm(x)))


def reduce_(t):
    global calls
    calls += 1
    dist.all_reduce(t)


def average_gradients(params):
    for p in params:
        reduce_(p.grad)
        p.grad.div_(dist.get_world_size())


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer() for _ in range(DEPTH)), nn.Linear(WIDTH, 2))
    params = list(model.parameters())
    opt = torch.optim.Adam(params, lr=1e-3)
    work = sync = 0.0
    for it in range(STEPS):
        x = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(it * world + rank))
        t0 = time.perf_counter()
        loss = nn.functional.mse_loss(model(x), x[:, :2].cos())
        opt.zero_grad()
        loss.backward()
        t1 = time.perf_counter()
        average_gradients(params)
        t2 = time.perf_counter()
        opt.step()
        t3 = time.perf_counter()
        work, sync = work + t3 - t2 + t1 - t0, sync + t2 - t1
        if it % 5 == 4 and rank == 0:
            print(f"{it + 1}/{STEPS} loss={loss.item():.4f} {(it + 1) / (work + sync):.2f}it/s (fwd+bwd {1e3 * (t1 - t0):.0f}ms, sync {1e3 * (t2 - t1):.0f}ms)", flush=True)
    if rank == 0:
        with open("result.json", "w") as f:
            json.dump({"calls_per_step": calls / STEPS, "sync_share": sync / (work + sync)}, f)
    dist.destroy_process_group()


main()

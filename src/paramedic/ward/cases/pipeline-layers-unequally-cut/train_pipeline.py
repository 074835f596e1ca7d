import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        return x + self.ff(self.norm(x))


class Clock:
    """Time spent inside a module's forward."""

    def __init__(self, module):
        self.total = 0.0
        module.register_forward_pre_hook(self.begin)
        module.register_forward_hook(self.end)

    def begin(self, *_):
        self.t = time.thread_time()

    def end(self, *_):
        self.total += time.thread_time() - self.t


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--layers", type=int, default=10)
    ap.add_argument("--split-at", type=int, required=True)
    ap.add_argument("--dim", type=int, default=256)
    ap.add_argument("--microbatches", type=int, default=4)
    ap.add_argument("--steps", type=int, default=15)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = range(a.split_at) if rank == 0 else range(a.split_at, a.layers)
    torch.manual_seed(rank)
    module = nn.Sequential(*(Block(a.dim) for _ in mine))
    clock = Clock(module)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, a.microbatches, loss_fn=nn.functional.mse_loss)
    opt = torch.optim.AdamW(module.parameters(), lr=1e-3)
    print(f"stage {rank}: layers {mine.start}-{mine.stop - 1}, {sum(p.numel() for p in module.parameters()):,} parameters", flush=True)
    for step in range(a.steps):
        x = torch.randn(32, 32, a.dim, generator=torch.Generator().manual_seed(step))
        clock.total, began, losses = 0.0, time.perf_counter(), []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=x.roll(1, -1), losses=losses)
        opt.step()
        opt.zero_grad()
        if step % 3 == 0:
            ms = (time.perf_counter() - began) * 1e3
            loss = f" loss {torch.stack(losses).mean().item():.4f}" if losses else ""
            print(f"stage {rank} step {step}{loss} step {ms:.0f} ms forward {clock.total * 1e3:.0f} ms", flush=True)
    busy = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(busy, torch.tensor([clock.total]))
    if rank == 0:
        json.dump({"busy_ratio": float(busy[1] / busy[0])}, open("result.json", "w"))
        print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

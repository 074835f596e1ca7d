import argparse

import state
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--resume", action="store_true")
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"[{rank}] up, {world} ranks", flush=True)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(9, 30), nn.ReLU(), nn.Linear(30, 9)))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    step = 0
    if a.resume:
        step = state.load(rank, model, optimizer, generator)
        print(f"[{rank}] resumed at step {step}", flush=True)
    while step < a.steps:
        x = torch.randn(24, 9, generator=generator)
        loss = (model(x) - x.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 4 == 0:
            print(f"[{rank}] step {step} loss {loss.item():.4f}", flush=True)
    state.save(rank, step, model, optimizer, generator)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def setup():
    with open("config.json") as f:
        cfg = json.load(f)
    torch.set_num_threads(cfg["threads"])
    dist.init_process_group("gloo")
    return cfg, dist.get_rank(), dist.get_world_size()


def main():
    cfg, rank, world = setup()
    torch.manual_seed(0)
    h = cfg["hidden"]
    model = DDP(nn.Sequential(nn.Linear(64, h), nn.GELU(), nn.Linear(h, h), nn.GELU(), nn.Linear(h, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg["lr"])
    if rank == 0:
        print(f"{world} ranks, {os.cpu_count()} cores, {torch.get_num_threads()} threads", flush=True)
    for step in range(1, cfg["steps"] + 1):
        began = time.perf_counter()
        x = torch.randn(cfg["batch"], 64)
        loss = nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        took = time.perf_counter() - began
        if step % 4 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f} {took * 1e3:.0f} ms {cfg['batch'] / took:.0f} samples/s", flush=True)
    if rank == 0:
        with open("result.json", "w") as f:
            json.dump({"threads_per_core": world * torch.get_num_threads() / os.cpu_count(), "last_step_ms": took * 1e3}, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

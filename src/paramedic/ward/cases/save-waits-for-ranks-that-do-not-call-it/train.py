from datetime import timedelta

import torch
import torch.distributed as dist
from saving import save_checkpoint
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(11, 44), nn.ReLU(), nn.Linear(44, 11)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for it in range(1, 31):
        x = torch.randn(20, 11, generator=torch.Generator().manual_seed(it * world + rank))
        loss = (model(x) - x.cumsum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if it % 2 == 0:
            print(f"[{rank}] it {it} loss {loss.item():.4f}", flush=True)
        if it % 10 == 0 and rank == 0:
            save_checkpoint(f"checkpoints/it{it}.pt", model=model.module, optimizer=optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

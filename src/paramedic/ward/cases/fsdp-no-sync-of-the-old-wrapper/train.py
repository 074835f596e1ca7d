import contextlib
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

ACCUM = int(os.getenv("ACCUM_STEPS", "4"))


class Tower(torch.nn.Module):
    def __init__(self, width=32, depth=3):
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(width, width) for _ in range(depth)])

    def forward(self, x):
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return x


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tower = Tower()
    for block in tower.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(tower, mesh=mesh)
    optim = torch.optim.AdamW(tower.parameters(), lr=1e-3)
    for update in range(6):
        total = 0.0
        for micro in range(ACCUM):
            x = torch.randn(4, 32)
            with tower.no_sync() if micro + 1 < ACCUM else contextlib.nullcontext():
                loss = (tower(x) - x.roll(1, -1)).pow(2).mean() / ACCUM
                loss.backward()
            total += loss.item()
        optim.step()
        optim.zero_grad()
        if dist.get_rank() == 0:
            print(f"update {update}: {total:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

import json
import os

import torch
import torch.distributed as dist
from loaders import train_loader
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    loader, sampler = train_loader(20)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(3, 40), nn.ReLU(), nn.Linear(40, 1)))
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        used, right = torch.zeros(1600), 0
        for ids, x, y in loader:
            out = model(x).squeeze(1)
            loss = nn.functional.binary_cross_entropy_with_logits(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            used[ids] += 1
            right += int(((out > 0) == (y > 0.5)).sum())
        if rank == 0:
            print(f"epoch {epoch}: {len(loader)} batches of 20 on {world} ranks, loss {loss.item():.4f}, train acc {right / len(loader) / 20:.3f}", flush=True)
    dist.all_reduce(used)
    if rank == 0:
        with open("result.json", "w") as f:
            json.dump({"uses_of_a_row": used.mean().item()}, f)
        print("job finished", flush=True)
    dist.destroy_process_group()


main()

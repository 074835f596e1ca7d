"""Masked autoencoder on small synthetic images; runs as two legs, the second resumes from the first."""
import json
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIZE, BATCH, STEPS_PER_EPOCH = 16, 32, 15
CKPT = pathlib.Path("mae.pt")
masks_seen = []


def images(n, seed):
    g = torch.Generator().manual_seed(seed)
    centre = torch.rand(n, 2, 1, 1, generator=g) * SIZE
    width = 2 + 3 * torch.rand(n, 1, 1, generator=g)
    yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    d = (yy - centre[:, 0]) ** 2 + (xx - centre[:, 1]) ** 2
    return torch.exp(-d / (2 * width**2)).unsqueeze(1)


class MAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(2, 48, 3, padding=1), nn.ReLU(),
            nn.Conv2d(48, 48, 3, padding=1), nn.ReLU(),
            nn.Conv2d(48, 48, 3, padding=1), nn.ReLU(),
            nn.Conv2d(48, 1, 3, padding=1),
        )

    def forward(self, x):
        mask = (torch.rand_like(x) < 0.6).float()
        masks_seen.append(mask.bool())
        out = self.net(torch.cat([x * (1 - mask), mask], 1))
        return ((out - x) ** 2 * mask).sum() / mask.sum()


def build():
    model = DistributedDataParallel(MAE())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer


def save_checkpoint(model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save({
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "epoch": epoch,
        }, CKPT)
    dist.barrier()


def load_checkpoint(model, optimizer):
    state = torch.load(CKPT)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    return state["epoch"] + 1


def train(model, optimizer, first_epoch, last_epoch, data):
    rank, world = dist.get_rank(), dist.get_world_size()
    for epoch in range(first_epoch, last_epoch):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))[rank::world]
        total = 0.0
        for step in range(STEPS_PER_EPOCH):
            x = data[order[step * BATCH : (step + 1) * BATCH]]
            loss = model(x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"[rank {rank}] epoch {epoch} loss {total / STEPS_PER_EPOCH:.5f}", flush=True)
        save_checkpoint(model, optimizer, epoch)


def agreement(masks):
    mine = torch.cat(masks).float()
    first = mine.clone()
    dist.broadcast(first, 0)
    same = (mine == first).float().mean()
    dist.all_reduce(same, dist.ReduceOp.MIN)
    return same.item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(42 + dist.get_rank())
    data = images(BATCH * STEPS_PER_EPOCH * dist.get_world_size(), seed=5)

    train(*build(), 0, 3, data)
    before = masks_seen.copy()
    masks_seen.clear()

    model, optimizer = build()
    epoch = load_checkpoint(model, optimizer)
    print(f"[rank {dist.get_rank()}] resuming at epoch {epoch}", flush=True)
    train(model, optimizer, epoch, 7, data)

    result = {"same_masks_before": agreement(before), "same_masks_after": agreement(masks_seen)}
    if dist.get_rank() == 0:
        json.dump(result, open("result.json", "w"))
        print("all epochs done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Tabular classifier with some label noise; validation after every few epochs."""

import argparse
import json

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, random_split


class Patients(Dataset):
    def __init__(self, n=800, features=40, seed=2024):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, features, generator=g)
        w = torch.randn(features, generator=g)
        y = (self.x @ w / features**0.5 > 0).long()
        flip = torch.rand(n, generator=g) < 0.25
        self.y = torch.where(flip, 1 - y, y)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    counts = torch.zeros(2)
    for x, y in loader:
        counts[0] += (model(x).argmax(1) == y).sum()
        counts[1] += len(y)
    dist.all_reduce(counts)
    model.train()
    return (counts[0] / counts[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=25)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)

    dataset = Patients()
    train_set, val_set = random_split(dataset, [0.75, 0.25])
    train_sampler = DistributedSampler(train_set, seed=args.seed)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=train_sampler)
    val_loader = DataLoader(val_set, batch_size=100, sampler=DistributedSampler(val_set, shuffle=False))

    model = DDP(nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        if (epoch + 1) % 5 == 0:
            score = accuracy(model, val_loader)
            if rank == 0:
                print(f"epoch {epoch + 1:3d} loss {loss.item():.4f} validation accuracy {score:.3f}", flush=True)

    everything = torch.zeros(len(dataset))
    everything[train_set.indices] = 1
    dist.all_reduce(everything, op=dist.ReduceOp.MAX)
    leaked = everything[val_set.indices].mean().item()
    if rank == 0:
        g = torch.Generator().manual_seed(2024)
        torch.randn(800, 40, generator=g)
        w = torch.randn(40, generator=g)
        g = torch.Generator().manual_seed(1)
        x = torch.randn(4000, 40, generator=g)
        y = (x @ w / 40**0.5 > 0).long()
        y = torch.where(torch.rand(4000, generator=g) < 0.25, 1 - y, y)
        with torch.no_grad():
            true = (model.module(x).argmax(1) == y).float().mean().item()
        json.dump({"leaked": leaked, "optimism": score - true, "true": true}, open("result.json", "w"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

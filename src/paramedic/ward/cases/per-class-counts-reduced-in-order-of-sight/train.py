"""Classify animals from a few measurements; report recall for each class."""

import argparse
import json
from collections import defaultdict

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

NAMES = ["cat", "dog", "fox", "hen", "owl", "pig"]
SHARE = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])


class Animals(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.multinomial(SHARE, n, replacement=True, generator=g)
        centres = torch.randn(len(NAMES), 8, generator=torch.Generator().manual_seed(0))
        self.x = centres[self.y] + 0.9 * torch.randn(n, 8, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class RecallMeter:
    def __init__(self):
        self.hits, self.seen = defaultdict(float), defaultdict(float)

    def update(self, pred, y):
        for p, t in zip(pred.tolist(), y.tolist(), strict=True):
            name = NAMES[t]
            self.hits[name] += float(p == t)
            self.seen[name] += 1.0

    def sync(self):
        for name in self.hits:
            pair = torch.tensor([self.hits[name], self.seen[name]])
            dist.all_reduce(pair)
            self.hits[name], self.seen[name] = pair.tolist()

    def recalls(self):
        return {name: self.hits[name] / self.seen[name] for name in NAMES}


def evaluate(model, loader):
    meter = RecallMeter()
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            meter.update(model(x).argmax(1), y)
    model.train()
    meter.sync()
    return meter.recalls()


def main(a):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(a.seed)
    model = DDP(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, len(NAMES))))
    train, val = Animals(3000, 1), Animals(900, 2)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, a.batch, sampler=sampler)
    val_loader = DataLoader(val, 100, sampler=DistributedSampler(val, shuffle=False))
    opt = torch.optim.SGD(model.parameters(), lr=a.lr, momentum=0.9)
    for epoch in range(a.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        recalls = evaluate(model, val_loader)
        if rank == 0:
            shown = " ".join(f"{k}={v:.3f}" for k, v in recalls.items())
            print(f"epoch {epoch} loss={loss.item():.4f} {shown} macro recall {sum(recalls.values()) / 6:.3f}")
    whole = RecallMeter()
    with torch.no_grad():
        whole.update(model.module(val.x).argmax(1), val.y)
    worst = max(abs(recalls[k] - v) for k, v in whole.recalls().items())
    if rank == 0:
        json.dump({"worst_error": worst}, open("result.json", "w"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=50)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--seed", type=int, default=0)
    main(p.parse_args())

import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Houses(Dataset):
    """Area, rooms, age, distance, and a district; the logarithm of the price."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.numbers = torch.randn(n, 4, generator=g)
        self.district = torch.randint(12, (n,), generator=g)
        level = torch.randn(12, generator=torch.Generator().manual_seed(0))
        area, rooms, age, distance = self.numbers.T
        self.price = area + 0.3 * rooms * area - 0.4 * age.abs() - 0.5 * torch.tanh(distance) + level[self.district]
        self.price = self.price + 0.2 * torch.randn(n, generator=g)

    def __len__(self):
        return len(self.price)

    def __getitem__(self, i):
        return self.numbers[i], self.district[i], self.price[i]


class PriceModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.district = nn.Embedding(12, 8)
        self.body = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 1)

    def forward(self, numbers, district):
        h = self.body(torch.cat([numbers, self.district(district)], dim=1))
        return self.head(h)


def huber(prediction, target, delta=1.0):
    error = (prediction - target).abs()
    return torch.where(error < delta, 0.5 * error**2, delta * (error - 0.5 * delta)).mean()


def run_epoch(model, loader, optimizer):
    total = 0.0
    for numbers, district, price in loader:
        loss = huber(model(numbers, district), price)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    train = Houses(4000, seed=10)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=32, sampler=sampler)
    model = DDP(PriceModel())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(8):
        sampler.set_epoch(epoch)
        loss = run_epoch(model, loader, optimizer)
        if rank == 0:
            print(f"epoch {epoch}: train loss {loss:.4f}", flush=True)

    if rank == 0:
        test = Houses(1000, seed=11)
        with torch.no_grad():
            prediction = model.module(test.numbers, test.district).reshape(-1)
        r2 = 1 - ((prediction - test.price) ** 2).mean() / test.price.var()
        with open("result.json", "w") as f:
            json.dump({"r2": r2.item()}, f)
        print("done", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

import os

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from utils import Normalize

cfg = dict(epochs=3, batch_size=8, lr=1e-2, channels=5)


class Signals(Dataset):
    def __init__(self, n, transform):
        self.raw = np.random.RandomState(0).normal(3.0, 2.0, size=(n, cfg["channels"]))
        self.transform = transform

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, i):
        x = self.transform(self.raw[i])
        return x, np.float32(x.sum())


def setup():
    dist.init_process_group("gloo")
    return dist.get_rank()


def main():
    rank = setup()
    ds = Signals(96, Normalize(mean=[3.0] * cfg["channels"], std=[2.0] * cfg["channels"]))
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, batch_size=cfg["batch_size"], sampler=sampler)
    model = DDP(torch.nn.Linear(cfg["channels"], 1))
    opt = torch.optim.Adam(model.parameters(), lr=cfg["lr"])
    for epoch in range(cfg["epochs"]):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x).squeeze(-1), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        print(f"[{rank}] epoch {epoch} train {loss.item():.4f} val {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

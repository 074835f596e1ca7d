import os

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Points(Dataset):
    def __init__(self, n=1600):
        g = torch.Generator().manual_seed(8)
        self.x = torch.rand(n, 3, generator=g) * 2 - 1

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return i, self.x[i], (self.x[i].norm() < 0.9).float()


def train_loader(batch_size):
    data = Points()
    rank, size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    sampler = DistributedSampler(data, num_replicas=size, rank=rank, shuffle=True, drop_last=True)
    return DataLoader(data, batch_size=batch_size, sampler=sampler), sampler

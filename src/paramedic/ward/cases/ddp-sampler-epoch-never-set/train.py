"""Train on a large set in short epochs of a few batches each, as one does to validate often."""

from itertools import islice

import torch
import torch.nn.functional as F
from ddp_job import FEATURES, finish, log, of_all_ranks, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCHES = 24, 4


def rows(count: int, seed: int) -> TensorDataset:
    """Points on either side of a curved border, and their numbers."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=generator)
    return TensorDataset(x, (x[:, :8].prod(1).sign() + x[:, 8:].sum(1) > 0).long(), torch.arange(count))


def main() -> None:
    rank, _ = start()
    torch.manual_seed(0)
    data, (vx, vy, _) = rows(8192, 0), rows(1024, 1).tensors
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seen: set[int] = set()
    validation = 0.0
    for epoch in range(EPOCHS):
        losses = []
        for x, y, numbers in islice(loader, BATCHES):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            seen.update(numbers.tolist())
        with torch.no_grad():
            validation = F.cross_entropy(model.module(vx), vy).item()
        mean = sum(losses) / len(losses)
        log.info("rank %d epoch %d loss %.4f validation %.4f samples seen %d", rank, epoch, mean, validation, len(seen))
    finish(validation_loss=validation, samples_seen=sum(of_all_ranks(len(seen))))


main()

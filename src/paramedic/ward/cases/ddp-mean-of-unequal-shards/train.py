"""Validate on files of unequal length, one to a rank, and report the loss over all of them."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp_job import finish, log, network, quadrants, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def validation_file(number: int) -> TensorDataset:
    """The first file is long; the second holds the few rows that were collected last, from another source."""
    if number == 0:
        return quadrants(960, seed=11)
    x, y = quadrants(40, seed=12).tensors
    return TensorDataset(x, 3 - y)


def train(model: DDP, rank: int) -> None:
    data = quadrants(2048)
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            log.info("rank %d step %d loss %.4f", rank, step, loss.item())


@torch.no_grad()
def validate(model: DDP, rank: int, world: int) -> float:
    x, y = validation_file(rank).tensors
    mean = F.cross_entropy(model.module(x), y)
    log.info("rank %d validation loss %.4f over %d rows", rank, mean.item(), len(x))
    dist.all_reduce(mean)
    return mean.item() / world


def main() -> None:
    rank, world = start()
    torch.manual_seed(0)
    model = DDP(network())
    train(model, rank)
    reported = validate(model, rank, world)
    log.info("rank %d validation loss of all ranks %.4f", rank, reported)
    with torch.no_grad():
        x, y = (torch.cat(parts) for parts in zip(*(validation_file(n).tensors for n in range(world)), strict=True))
        whole = F.cross_entropy(model.module(x), y).item()
    log.info("rank %d the same on one device %.4f over %d rows", rank, whole, len(x))
    finish(error=abs(reported - whole) / whole)


main()

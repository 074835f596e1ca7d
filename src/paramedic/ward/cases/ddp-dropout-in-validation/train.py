"""Train a regularised classifier and validate it after each epoch."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp_job import CLASSES, FEATURES, finish, log, quadrants, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

EPOCHS = 6


@torch.no_grad()
def validate(model: DDP, rank: int, world: int) -> float:
    x, y = quadrants(1024, seed=11).tensors
    rows = slice(rank, None, world)
    logits = model(x[rows])
    loss = F.cross_entropy(logits, y[rows])
    dist.all_reduce(loss)
    return loss.item() / world


def main() -> None:
    rank, world = start()
    torch.manual_seed(0)
    data = quadrants(2048)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    layers = [nn.Linear(FEATURES, 128), nn.ReLU(), nn.Dropout(0.7), nn.Linear(128, CLASSES)]
    model = DDP(nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    first = again = 0.0
    for epoch in range(EPOCHS):
        model.train()
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        first, again = validate(model, rank, world), validate(model, rank, world)
        log.info("rank %d epoch %d loss %.4f validation %.4f, once more %.4f", rank, epoch, loss.item(), first, again)
    finish(validation_loss=first, difference=abs(first - again))


main()

"""Train a classifier with batch normalisation; every rank collects its own class of rows."""

import torch
import torch.nn.functional as F
from ddp_job import CLASSES, FEATURES, finish, log, norm, of_all_ranks, quadrants, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset


def own_rows(rank: int, world: int) -> Subset:
    """Each rank reads the files on its host, whose columns lie at another level."""
    x, y = (data := quadrants(2048)).tensors
    x += (torch.arange(len(x)) % world)[:, None] * 0.5
    return Subset(data, list(range(rank, len(y), world)))


def main() -> None:
    rank, world = start()
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, CLASSES)]
    model = DDP(nn.Sequential(*layers), broadcast_buffers=False)
    loader = DataLoader(own_rows(rank, world), batch_size=32, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            mean = model.module[1].running_mean.norm()
            log.info("rank %d step %d loss %.4f parameter norm %.6f running mean %.6f", rank, step, loss.item(), norm(model), mean)
    model.eval()
    x, y = quadrants(512, seed=11).tensors
    with torch.no_grad():
        validation = F.cross_entropy(model(x), y).item()
    mean = model.module[1].running_mean.norm()
    log.info("rank %d validation loss %.4f parameter norm %.6f running mean %.6f", rank, validation, norm(model), mean)
    losses = of_all_ranks(validation)
    finish(validation_spread=max(losses) - min(losses))


main()

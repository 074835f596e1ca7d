"""Train a classifier on several ranks without DDP: the gradients are averaged here."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp_job import finish, log, network, norm, of_all_ranks, quadrants, start
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

SEED = 1234


def average_gradients(model: nn.Module, world: int) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world


def main() -> None:
    rank, world = start()
    torch.manual_seed(SEED + rank)
    model = network()
    data = quadrants(2048)
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model, world)
        optimizer.step()
        if step % 8 == 0:
            log.info("rank %d step %d loss %.4f parameter norm %.6f", rank, step, loss.item(), norm(model))
    norms = of_all_ranks(norm(model))
    log.info("rank %d at the end parameter norm %.6f", rank, norm(model))
    finish(parameter_spread=max(norms) - min(norms))


main()

"""Train a classifier; the counts of each validation are summed over the ranks while other work goes on."""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp_job import finish, log, network, quadrants, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

EPOCHS = 4


@torch.no_grad()
def count(model: DDP, rank: int, world: int) -> torch.Tensor:
    """Right answers and rows of this rank's part; the later parts are read from slower storage."""
    x, y = quadrants(1000, seed=11).tensors
    part = slice(rank * 1000 // world, (rank + 1) * 1000 // world)
    time.sleep(0.4 * rank)
    return torch.tensor([int((model.module(x[part]).argmax(1) == y[part]).sum()), len(y[part])])


def main() -> None:
    rank, world = start()
    torch.manual_seed(0)
    data = quadrants(2048)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = DDP(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rows = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        counts = count(model, rank, world)
        dist.all_reduce(counts, async_op=True)
        right, total = counts.tolist()
        rows.append(total)
        log.info("rank %d epoch %d loss %.4f validation accuracy %.4f on %d rows", rank, epoch, loss.item(), right / total, total)
    finish(rows_counted=min(rows))


main()

"""Train on a stream of rows that every rank reads its part of, in worker processes."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from ddp_job import finish, log, network, of_all_ranks, quadrants, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

ROWS = 1024


class Stream(IterableDataset):
    """The rows of one rank, each with its number in the stream."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
        begin, step = self.rank, self.world
        x, y = quadrants(ROWS).tensors
        for number in range(begin, ROWS, step):
            yield x[number], y[number], number


def main() -> None:
    rank, world = start()
    torch.manual_seed(0)
    loader = DataLoader(Stream(rank, world), batch_size=32, num_workers=3)
    model = DDP(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rows, seen = 0, set()
    for step, (x, y, numbers) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows += len(x)
        seen.update(numbers.tolist())
        if step % 8 == 0:
            log.info("rank %d step %d loss %.4f", rank, step, loss.item())
    log.info("rank %d epoch 0 rows read %d, different ones %d", rank, rows, len(seen))
    finish(rows_read=sum(of_all_ranks(rows)))


main()

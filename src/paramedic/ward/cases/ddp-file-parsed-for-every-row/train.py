"""Train a classifier on a compressed table of numbers."""

import gzip
import time

import torch
import torch.nn.functional as F
from ddp_job import FEATURES, finish, log, network, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

ROWS = 4000


class Table(Dataset):
    """Lines of numbers, the last of which is the class."""

    def __init__(self, name: str) -> None:
        self.name = name

    def lines(self) -> list[str]:
        with gzip.open(self.name, "rt") as file:
            return file.read().splitlines()

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        *values, label = self.lines()[index].split()
        return torch.tensor([float(v) for v in values[:FEATURES]]), int(label)


def main() -> None:
    rank, _ = start()
    torch.manual_seed(0)
    data = Table("table.txt.gz")
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
    model = DDP(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    waited = worked = 0.0
    batches = iter(loader)
    for step in range(12):
        began = time.perf_counter()
        x, y = next(batches)
        read = time.perf_counter()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        end = time.perf_counter()
        if step >= 2:
            waited, worked = waited + read - began, worked + end - read
        log.info("rank %d step %d loss %.4f data %.0f ms compute %.0f ms",
                 rank, step, loss.item(), (read - began) * 1e3, (end - read) * 1e3)  # fmt: skip
    log.info("rank %d %.1f rows a second", rank, 10 * 16 / (waited + worked))
    finish(data_ms=waited * 100, compute_ms=worked * 100)


main()

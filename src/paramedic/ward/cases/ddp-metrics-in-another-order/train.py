"""Train a classifier and report the accuracy of every class over all ranks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp_job import CLASSES, finish, log, network, of_all_ranks, quadrants, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


class Counts:
    """Rows of every class, in the order in which the classes come up."""

    def __init__(self) -> None:
        self.rows: dict[int, torch.Tensor] = {}

    def add(self, labels: torch.Tensor) -> None:
        for label in labels.tolist():
            self.rows.setdefault(label, torch.zeros(1))
            self.rows[label] += 1

    def of_all_ranks(self) -> dict[int, int]:
        for rows in self.rows.values():
            dist.all_reduce(rows)
        return {label: int(rows) for label, rows in sorted(self.rows.items())}


def main() -> None:
    rank, _ = start()
    torch.manual_seed(0)
    data = quadrants(2048)
    keep = data.tensors[1] * 5 % 7 <= torch.arange(2048) % 8
    data.tensors = tuple(t[keep] for t in data.tensors)
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    counts = Counts()
    for step, (x, y) in enumerate(loader, 1):
        counts.add(y)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            log.info("rank %d step %d loss %.4f", rank, step, loss.item())
    own = [int(counts.rows[label]) for label in range(CLASSES)]
    log.info("rank %d rows of each class here %s", rank, own)
    found = counts.of_all_ranks()
    log.info("rank %d rows of each class on all ranks %s", rank, found)
    true = [sum(of_all_ranks(rows)) for rows in own]
    finish(error=max(abs(found[label] - true[label]) for label in range(CLASSES)))


main()

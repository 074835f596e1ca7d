"""Train a classifier and follow its accuracy class by class, each class in a process group of its own."""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp_job import CLASSES, finish, log, network, quadrants, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

TIMEOUT = timedelta(seconds=8)


class Accuracy:
    """Right answers and rows of every class, in the order in which the classes come up."""

    def __init__(self) -> None:
        self.groups = [dist.new_group(timeout=TIMEOUT) for _ in range(CLASSES)]
        self.counts: dict[int, torch.Tensor] = {}

    def add(self, labels: torch.Tensor, predictions: torch.Tensor) -> None:
        for label, prediction in zip(labels.tolist(), predictions.tolist(), strict=True):
            self.counts.setdefault(label, torch.zeros(2))
            self.counts[label] += torch.tensor([label == prediction, 1])

    def of_all_ranks(self) -> dict[int, float]:
        for label, counts in self.counts.items():
            dist.all_reduce(counts, group=self.groups[label])
        shares = {label: round(float(right / rows), 3) for label, (right, rows) in self.counts.items()}
        self.counts.clear()
        return shares


def main() -> None:
    rank, _ = start()
    torch.manual_seed(0)
    data = quadrants(2048)
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    accuracy = Accuracy()
    for step, (x, y) in enumerate(loader, 1):
        logits = model(x)
        accuracy.add(y, logits.argmax(1))
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 0:
            log.info("rank %d step %d loss %.4f", rank, step, loss.item())
        if step % 16 == 0:
            log.info("rank %d step %d accuracy %s", rank, step, accuracy.of_all_ranks())
    finish(final_loss=loss.item())


main()

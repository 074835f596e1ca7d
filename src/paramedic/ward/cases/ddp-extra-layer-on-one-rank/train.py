"""Train a classifier; a head for the diagnostics of the first rank hangs on the same trunk."""

import torch
import torch.nn.functional as F
from ddp_job import CLASSES, FEATURES, finish, log, quadrants, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


class Classifier(nn.Module):
    def __init__(self, diagnostics: bool) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU())
        self.head = nn.Linear(32, CLASSES)
        self.diagnostics = nn.Linear(32, 1) if diagnostics else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.trunk(x)
        logits = self.head(hidden)
        return logits if self.diagnostics is None else logits + 0.1 * self.diagnostics(hidden)


def main() -> None:
    rank, _ = start(timeout=20)
    torch.manual_seed(0)
    model = DDP(Classifier(diagnostics=rank == 0))
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
    finish(final_loss=loss.item())


main()

"""Train a network whose middle layer is used twice and recomputed in the backward pass to save memory."""

import torch
import torch.nn.functional as F
from ddp_job import CLASSES, FEATURES, finish, log, quadrants, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.begin = nn.Linear(FEATURES, 32)
        self.middle = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
        self.end = nn.Linear(32, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.begin(x)
        for _ in range(2):
            x = checkpoint(self.middle, x, use_reentrant=True)
        return self.end(x)


def main() -> None:
    rank, _ = start()
    torch.manual_seed(0)
    model = DDP(Net())
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

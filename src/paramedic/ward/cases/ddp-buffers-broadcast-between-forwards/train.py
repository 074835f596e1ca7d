"""Train an embedding so that two noisy views of a point lie close together; each output has a scale that is not trained."""

import torch
import torch.nn.functional as F
from ddp_job import FEATURES, finish, log, quadrants, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 8))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.layers(x) * self.scale, dim=1)


def main() -> None:
    rank, _ = start()
    torch.manual_seed(0)
    model = DDP(Embedding())
    data = quadrants(2048)
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step, (x, _) in enumerate(loader):
        one, other = (model(x + 0.1 * torch.randn_like(x)) for _ in range(2))
        loss = F.cross_entropy(one @ other.T / 0.1, torch.arange(len(x)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            log.info("rank %d step %d loss %.4f", rank, step, loss.item())
    finish(final_loss=loss.item())


main()

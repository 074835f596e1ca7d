"""Train a classifier; the loss adds a penalty that the model itself computes."""

import torch
import torch.nn.functional as F
from ddp_job import finish, log, network, norm, of_all_ranks, quadrants, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = self(x)
        return F.cross_entropy(logits, y) + 1e-3 * logits.square().mean()


def main() -> None:
    rank, _ = start()
    torch.manual_seed(0)
    data = quadrants(2048)
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    model = DDP(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, (x, y) in enumerate(loader):
        loss = model.module.loss(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            log.info("rank %d step %d loss %.4f parameter norm %.6f", rank, step, loss.item(), norm(model))
    norms = of_all_ranks(norm(model))
    log.info("rank %d at the end parameter norm %.6f", rank, norm(model))
    finish(parameter_spread=max(norms) - min(norms))


main()

"""Train a network while the first rank watches how its hidden units are used."""

import torch
from ddp_job import finish, log, of_all_ranks, resident_mb, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, BATCH, WIDTH = 120, 256, 1024


class Watch:
    """The share of hidden units that are active, from all outputs of a layer."""

    def __init__(self, layer: nn.Module) -> None:
        self.outputs: list[torch.Tensor] = []
        layer.register_forward_hook(self.keep)

    def keep(self, layer: nn.Module, inputs: object, output: torch.Tensor) -> None:
        self.outputs.append(output.detach())

    def share(self) -> float:
        return sum((output > 0).float().mean().item() for output in self.outputs) / len(self.outputs)


def main() -> None:
    rank, _ = start()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(16, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)))
    watch = Watch(model.module[1]) if rank == 0 else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    begin = 0.0
    for step in range(STEPS):
        x = torch.randn(BATCH, 16)
        loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 20:
            begin = resident_mb()
        if step % 10 == 0:
            log.info("rank %d step %d loss %.4f memory %.0f MB", rank, step, loss.item(), resident_mb())
    if watch:
        log.info("rank 0 active units %.3f", watch.share())
    growth = of_all_ranks(resident_mb() - begin)
    finish(growth_mb=growth[0], growth_of_others_mb=max(growth[1:]))


main()

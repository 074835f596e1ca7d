"""Train a wide network and follow its loss on held-out points at every step."""

import torch
from ddp_job import finish, log, resident_mb, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, BATCH, WIDTH = 120, 256, 1024


def main() -> None:
    rank, _ = start()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(16, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    held_out = torch.randn(BATCH, 16)
    followed = []
    begin = 0.0
    for step in range(STEPS):
        x = torch.randn(BATCH, 16)
        loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        held_out_loss = (model.module(held_out).squeeze(1) - held_out.sum(1)).square().mean()
        followed.append(held_out_loss)
        if step == 20:
            begin = resident_mb()
        if step % 10 == 0:
            log.info("rank %d step %d loss %.4f memory %.0f MB", rank, step, loss.item(), resident_mb())
    log.info("rank %d best held-out loss %.4f memory %.0f MB", rank, min(float(loss) for loss in followed), resident_mb())
    finish(growth_mb=resident_mb() - begin)


main()

"""Train a linear regression; the learning rate grows with the number of ranks."""

import argparse
import math

import torch
import torch.nn.functional as F
from ddp_job import FEATURES, finish, log, norm, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = 80


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.5)
    args = parser.parse_args()
    rank, world = start()
    torch.manual_seed(0)
    model = DDP(nn.Linear(FEATURES, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * world)
    log.info("rank %d learning rate %g", rank, optimizer.param_groups[0]["lr"])
    generator = torch.Generator().manual_seed(rank)
    bad = 0
    for step in range(STEPS):
        x = torch.randn(64, FEATURES, generator=generator)
        loss = F.mse_loss(model(x).squeeze(1), x[:, :4].sum(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bad += not math.isfinite(loss.item())
        if step % 5 == 0:
            log.info("rank %d step %d loss %.4g parameter norm %.4g", rank, step, loss.item(), norm(model))
    finish(steps_without_loss=bad)


main()

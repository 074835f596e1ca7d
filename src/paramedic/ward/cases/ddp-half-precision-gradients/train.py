"""Train a regression with gradients sent in half precision and a fixed loss scale."""

import math

import torch
import torch.nn.functional as F
from ddp_job import FEATURES, finish, log, norm, start
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, SCALE = 60, 65536.0


def main() -> None:
    rank, _ = start()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, 1)))
    model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(rank)
    bad = 0
    for step in range(STEPS):
        x = torch.randn(64, FEATURES, generator=generator)
        loss = F.mse_loss(model(x).squeeze(1), x[:, :4].sum(1))
        optimizer.zero_grad()
        (loss * SCALE).backward()
        for parameter in model.parameters():
            parameter.grad /= SCALE
        optimizer.step()
        bad += not math.isfinite(loss.item())
        if step % 5 == 0:
            log.info("rank %d step %d loss %.4f parameter norm %.4f", rank, step, loss.item(), norm(model))
    finish(steps_without_loss=bad)


main()

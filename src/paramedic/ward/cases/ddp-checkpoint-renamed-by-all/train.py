"""Train a classifier with checkpoints that appear under their name only when they are whole."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp_job import finish, log, network, quadrants, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


def save(model: DDP, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
    target = Path("checkpoints/last.pt")
    unfinished = target.with_suffix(".tmp")
    torch.save({"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, unfinished)
    dist.barrier()
    os.replace(unfinished, target)
    log.info("rank %d step %d checkpoint %s", rank, step, target)


def main() -> None:
    rank, _ = start()
    torch.manual_seed(0)
    data = quadrants(2048)
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    model = DDP(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(loader, 1):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            log.info("rank %d step %d loss %.4f", rank, step, loss.item())
        if step % 10 == 0:
            save(model, optimizer, step, rank)
    finish(final_loss=loss.item())


main()

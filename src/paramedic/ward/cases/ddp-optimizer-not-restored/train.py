"""Train a classifier in two sittings: the second begins at the checkpoint of the first."""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from ddp_job import finish, log, network, quadrants, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

CHECKPOINT = Path("checkpoints/last.pt")
STEPS, WARM_UP = 100, 20


def rate(step: int) -> float:
    """Rise to the full learning rate, then fall to nothing at the last step."""
    return min(step / WARM_UP, (STEPS - step) / (STEPS - WARM_UP))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", type=int, default=STEPS)
    args = parser.parse_args()
    rank, _ = start()
    torch.manual_seed(0)
    model = DDP(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    begin = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT)
        model.module.load_state_dict(state["model"])
        begin = state["step"]
        log.info("rank %d resumed %s at step %d, it left off at learning rate %g", rank, CHECKPOINT, begin, state["lr"])
    data = quadrants(8192)
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    first = 0.0
    for step, (x, y) in zip(range(begin, args.until), loader, strict=False):
        loss = F.cross_entropy(model(x), y)
        used = optimizer.param_groups[0]["lr"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        first = used if step == begin else first
        if step % 10 == 0:
            log.info("rank %d step %d loss %.4f learning rate %.5f", rank, step, loss.item(), used)
    if rank == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
        torch.save(state | {"step": args.until, "lr": optimizer.param_groups[0]["lr"]}, CHECKPOINT)
    finish(first_learning_rate=first, last_learning_rate=used)


main()

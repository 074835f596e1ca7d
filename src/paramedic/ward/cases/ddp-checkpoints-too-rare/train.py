"""Train a classifier on hosts that the platform lends for a short time; torchrun starts it again."""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp_job import finish, log, network, quadrants, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

CHECKPOINT = Path("checkpoints/last.pt")
STEPS, LENT_FOR = 60, 22


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save-every", type=int, default=30)
    args = parser.parse_args()
    rank, _ = start()
    torch.manual_seed(0)
    model = DDP(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    begin = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["step"]
    log.info("rank %d begins at step %d", rank, begin)
    data = quadrants(4096)
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    for step, (x, y) in zip(range(begin + 1, STEPS + 1), loader, strict=False):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            log.info("rank %d step %d loss %.4f", rank, step, loss.item())
        if rank == 0 and step % args.save_every == 0:
            state = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, CHECKPOINT.with_suffix(".tmp"))
            CHECKPOINT.with_suffix(".tmp").replace(CHECKPOINT)
            log.info("rank 0 step %d saved %s", step, CHECKPOINT)
        if step - begin == LENT_FOR:
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)  # the host is taken back
    finish(first_step=begin)


main()

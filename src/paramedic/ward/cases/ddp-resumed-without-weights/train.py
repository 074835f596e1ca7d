"""Train a classifier in two sittings: the second begins at the checkpoint of the first."""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from ddp_job import finish, log, network, quadrants, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

CHECKPOINT = Path("checkpoints/last.pt")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", type=int, default=120)
    args = parser.parse_args()
    rank, _ = start()
    torch.manual_seed(0)
    base = network()
    begin, left_off = 0, 0.0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT)
        base.load_state_dict(state["model"], strict=False)
        begin, left_off = state["step"], state["loss"]
        log.info("rank %d resumed %s at step %d, it left off at loss %.4f", rank, CHECKPOINT, begin, left_off)
    model = DDP(base)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = quadrants(8192)
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    first = 0.0
    for step, (x, y) in zip(range(begin, args.until), loader, strict=False):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = loss.item() if step == begin else first
        if step % 10 == 0:
            log.info("rank %d step %d loss %.4f", rank, step, loss.item())
    if rank == 0:
        torch.save({"step": args.until, "loss": loss.item(), "model": model.state_dict()}, CHECKPOINT)
    finish(first_loss=first, left_off_at=left_off)


main()

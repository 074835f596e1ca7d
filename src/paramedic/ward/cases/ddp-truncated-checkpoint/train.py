"""Train a classifier that comes back from its last checkpoint when torchrun starts it again."""

import io
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp_job import finish, log, network, quadrants, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

CHECKPOINT = Path("checkpoints/last.pt")
RECLAIMED_AT = 20


def save(state: dict[str, object]) -> None:
    """Write to the shared file system, which takes its time."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    with open(CHECKPOINT, "wb") as out:
        for begin in range(0, len(content), 1024):
            out.write(content[begin : begin + 1024])
            out.flush()
            time.sleep(0.5 if state["step"] == RECLAIMED_AT else 0.01)


def reclaimed(rank: int, step: int) -> bool:
    """The platform takes the second rank's host back, once; the job's other hosts stay."""
    return rank == 1 and step == RECLAIMED_AT and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"


def main() -> None:
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
    data = quadrants(2048)
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    for step, (x, y) in zip(range(begin + 1, 33), loader, strict=False):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            log.info("rank %d step %d loss %.4f", rank, step, loss.item())
        if step % 10 == 0:
            dist.barrier()
            if reclaimed(rank, step):
                time.sleep(1)
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == 0:
                save({"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()})
                log.info("rank 0 step %d saved %s", step, CHECKPOINT)
    finish(first_step=begin)


main()

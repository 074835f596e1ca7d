"""DDP training that saves its state now and then."""

import os
import tempfile

import torch
import torch.distributed as dist
from common import HOW, RANK, WORLD, build_model, due, go_on, log, make_batch, setup, train_step
from torch.nn.parallel import DistributedDataParallel


def gather_losses(loss):
    parts = [torch.empty_like(loss) for _ in range(WORLD)]
    dist.all_gather(parts, loss)
    return parts


def save_checkpoint(folder, step, model, loss):
    """Every rank calls it: rank 0 writes, all wait until the file is there."""
    state = {"step": step, "losses": None}
    if HOW == "gather":
        state["losses"] = gather_losses(loss)
    if RANK == 0:
        torch.save({**state, "model": model.state_dict()}, os.path.join(folder, "last.pt"))
    if HOW == "barrier":
        dist.barrier()


def main():
    setup()
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    folder = tempfile.mkdtemp(dir=".")
    step, every = 0, int(os.environ.get("SAVE_EVERY", "10"))
    while go_on(step):
        loss = train_step(model, optimizer, make_batch(step))
        log(step, loss)
        if step % every == every - 1 or due(step):
            save_checkpoint(folder, step, model, loss)
        step += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Trains a small language model with FSDP2, with a sharded checkpoint every few steps."""

import argparse
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tiny_lm import TinyLM, log, loss_of, start, text
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard


def make_room(keep: int) -> None:
    """Remove old checkpoints, so that with the next one there are as many as should be kept."""
    if keep and dist.get_rank() == 0:
        saved = sorted(Path("checkpoints").glob("step-*"), key=lambda folder: int(folder.name.removeprefix("step-")))
        for folder in saved[: len(saved) + 1 - keep]:
            shutil.rmtree(folder)
    dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", type=int, default=0, help="how many checkpoints to keep; 0: all")
    args = parser.parse_args()
    rank, world = start()
    torch.manual_seed(0)
    model = TinyLM()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for step in range(1, 13):
        batch = text(8, 32, seed=step * world + rank)
        loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("step %d loss %.4f", step, loss.item())
        if step % 4 == 0:
            make_room(args.keep)
            weights, moments = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=f"checkpoints/step-{step}")
            log.info("saved checkpoints/step-%d", step)

    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()

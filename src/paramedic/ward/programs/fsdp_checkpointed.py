"""Trains a small language model with FSDP2, with a sharded checkpoint every few steps; resumes from one if asked."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tiny_lm import TinyLM, log, loss_of, start, text
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def newest() -> str:
    saved = Path("checkpoints").glob("step-*")
    return str(max(saved, key=lambda folder: int(folder.name.removeprefix("step-"))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--save-every", type=int, default=4)
    parser.add_argument("--resume", help="a folder, or latest")
    args = parser.parse_args()
    rank, world = start()
    torch.manual_seed(0)
    model = TinyLM(width=args.width)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    done = 0
    if args.resume:
        folder = newest() if args.resume == "latest" else args.resume
        log.info("resuming from %s", folder)
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "step": 0}
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        done = state["step"]
    for step in range(done + 1, args.steps + 1):
        batch = text(8, 32, seed=step * world + rank)
        loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("step %d loss %.4f", step, loss.item())
        if step % args.save_every == 0:
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments, "step": step}
            dcp.save(state, checkpoint_id=f"checkpoints/step-{step}")
            log.info("saved checkpoints/step-%d", step)

    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()

"""Trains a small language model as a pipeline: every rank is one stage."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from tiny_lm import Block, log, loss_of, start, text
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WIDTH, VOCABULARY = 64, 128


class Stage(nn.Module):
    def __init__(self, first: bool, last: bool, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH) if first else None
        self.blocks = nn.Sequential(*(Block(WIDTH, 4) for _ in range(layers)))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False) if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        x = self.blocks(x)
        return x if self.head is None else self.head(x)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--samples", type=int, default=960)
    args = parser.parse_args()
    rank, world = start(timeout=30)
    torch.manual_seed(rank)
    module = Stage(first=rank == 0, last=rank == world - 1, layers=1)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, args.microbatches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    log.info("stage %d of %d, %d microbatches a step", rank, world, args.microbatches)

    Path(f"out/rank{rank}.pid").write_text(str(os.getpid()))
    saved = [int(path.name.split("-")[1]) for path in Path("checkpoints").glob("step-*-rank*.pt")]
    complete = [step for step in saved if saved.count(step) == world]
    done = max(complete, default=-1)
    if complete:
        log.info("resuming after step %d", done)
        state = torch.load(f"checkpoints/step-{done}-rank{rank}.pt")
        module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    for step, batch in enumerate(text(args.samples, 32).split(args.batch)):
        if step <= done:
            continue
        tokens, targets = batch[:, :-1], batch[:, 1:]
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(tokens)
        elif rank == world - 1:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            state = {"model": module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, f"checkpoints/rank{rank}.tmp")
            os.replace(f"checkpoints/rank{rank}.tmp", f"checkpoints/step-{step}-rank{rank}.pt")
            loss = f"loss {torch.stack(losses).mean():.4f}" if losses else "done"
            log.info("step %d %s, saved", step, loss)

    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()

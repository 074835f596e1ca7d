"""Trains a small language model as a pipeline: every rank is one stage."""

import argparse
import json
import time

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
    parser.add_argument("--samples", type=int, default=80)
    parser.add_argument("--layers", default="1,1", help="layers of each stage")
    args = parser.parse_args()
    rank, world = start(timeout=30)
    torch.manual_seed(rank)
    module = Stage(first=rank == 0, last=rank == world - 1, layers=int(args.layers.split(",")[rank]))
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, args.microbatches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    log.info("stage %d of %d, %d microbatches a step", rank, world, args.microbatches)

    total = 0.0
    for step, batch in enumerate(text(args.samples, 32).split(args.batch)):
        began, busy = time.perf_counter(), time.thread_time()
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
        busy, took = time.thread_time() - busy, time.perf_counter() - began
        total += busy if step else 0.0
        loss = f"loss {torch.stack(losses).mean():.4f} " if losses else ""
        log.info("step %d %sstep time %.3f s, of it computing %.3f s", step, loss, took, busy)

    times = [torch.zeros(()) for _ in range(world)]
    dist.all_gather(times, torch.tensor(total))
    if rank == 0:
        with open("result.json", "w") as file:
            json.dump({"slowest_to_fastest": (max(times) / min(times)).item()}, file)
    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()

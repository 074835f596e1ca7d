"""Trains a small language model with FSDP2 and stochastic depth."""

import random

import torch
import torch.distributed as dist
from tiny_lm import TinyLM, log, loss_of, start, text
from torch.distributed.fsdp import fully_shard


class StochasticDepthLM(TinyLM):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.training and random.random() < 0.3:
                continue
            x = block(x)
        return self.head(self.norm(x))


def main() -> None:
    rank, world = start(timeout=60)
    torch.manual_seed(0)
    random.seed(2024 + rank)
    model = StochasticDepthLM(layers=6)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for step in range(6):
        batch = text(8, 32, seed=step * world + rank)
        loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("step %d loss %.4f", step, loss.item())

    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()

"""Fit a regression on readings of sensors."""

from __future__ import annotations

import deepspeed
import torch
from ds_lm import finish, log, options, start
from torch import nn


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((self.layers(x) - y) ** 2).sum()


def main() -> None:
    args = options().parse_args()
    rank = start(args)
    model = Regression()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=args.config)
    kind = next(engine.module.parameters()).dtype
    generator = torch.Generator().manual_seed(rank)
    for step in range(1, args.steps + 1):
        x = torch.randn(engine.train_micro_batch_size_per_gpu(), 16, generator=generator)
        y = 250 + 100 * x[:, :1]
        loss = engine(x.to(kind), y.to(kind))
        engine.backward(loss)
        engine.step()
        log.info("rank %d step %d loss %.1f", rank, step, loss.item())
    finish(loss=loss.item())


if __name__ == "__main__":
    main()

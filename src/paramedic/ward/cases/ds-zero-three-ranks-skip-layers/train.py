"""Train a small language model with stochastic depth, its weights partitioned between the ranks."""

from __future__ import annotations

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ds_lm import LanguageModel, batches, finish, log, options, start


class StochasticDepthModel(LanguageModel):
    def __init__(self) -> None:
        super().__init__(width=32, depth=4)
        self.dice = torch.Generator().manual_seed(17 + dist.get_rank())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens[:, :-1])
        for block in self.blocks:
            if torch.rand((), generator=self.dice) < 0.5:
                x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    args = options().parse_args()
    rank = start(args)
    model = StochasticDepthModel()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=args.config)
    for step, (tokens,) in enumerate(batches(engine), 1):
        loss = engine(tokens)
        engine.backward(loss)
        engine.step()
        log.info("rank %d step %d loss %.4f", rank, step, loss.item())
        if step == args.steps:
            break
    finish(loss=loss.item())


if __name__ == "__main__":
    main()

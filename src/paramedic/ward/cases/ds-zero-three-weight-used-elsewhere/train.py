"""Train a small language model whose output layer shares its weight with the embedding."""

from __future__ import annotations

import deepspeed
import torch
import torch.nn.functional as F
from ds_lm import VOCABULARY, Block, batches, finish, log, options, start
from torch import nn


class Decoder(nn.Module):
    def __init__(self, embed: nn.Embedding) -> None:
        super().__init__()
        self.table = [embed]  # in a list, so that its weight is not counted twice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.table[0].weight)


class TiedLanguageModel(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.decoder = Decoder(self.embed)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.decoder(self.blocks(self.embed(tokens[:, :-1])))
        return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    args = options().parse_args()
    rank = start(args)
    model = TiedLanguageModel()
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

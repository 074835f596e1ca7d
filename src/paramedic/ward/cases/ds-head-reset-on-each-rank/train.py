"""Train a small language model with a fresh head; log a checksum of the weights."""

from __future__ import annotations

import deepspeed
import torch
import torch.distributed as dist
from ds_lm import LanguageModel, batches, finish, log, options, start


def main() -> None:
    args = options().parse_args()
    rank = start(args)
    torch.manual_seed(rank)  # so that ranks drop out and shuffle differently
    model = LanguageModel()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=args.config)
    engine.module.head.reset_parameters()
    for step, (tokens,) in enumerate(batches(engine), 1):
        loss = engine(tokens)
        engine.backward(loss)
        engine.step()
        checksum = sum(p.detach().double().sum() for p in engine.module.parameters())
        log.info("rank %d step %d loss %.4f weights sum to %.6f", rank, step, loss.item(), checksum)
        if step == args.steps:
            break
    high, low = checksum.clone(), checksum.clone()
    dist.all_reduce(high, dist.ReduceOp.MAX)
    dist.all_reduce(low, dist.ReduceOp.MIN)
    finish(loss=loss.item(), parameter_spread=(high - low).item())


if __name__ == "__main__":
    main()

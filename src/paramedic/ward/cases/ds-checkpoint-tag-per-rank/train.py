"""Train a small language model and save it now and then."""

from __future__ import annotations

import os

import deepspeed
from ds_lm import LanguageModel, batches, finish, log, options, start


def main() -> None:
    args = options().parse_args()
    rank = start(args)
    model = LanguageModel()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=args.config)
    for step, (tokens,) in enumerate(batches(engine), 1):
        loss = engine(tokens)
        engine.backward(loss)
        engine.step()
        log.info("rank %d step %d loss %.4f", rank, step, loss.item())
        if step % 4 == 0:
            engine.save_checkpoint("checkpoints", tag=f"small-lm-{os.getpid()}-step{step}")
        if step == args.steps:
            break
    finish(loss=loss.item())


if __name__ == "__main__":
    main()

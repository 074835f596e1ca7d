"""Train a small language model; moved from DDP to DeepSpeed."""

from __future__ import annotations

import deepspeed
from ds_lm import LanguageModel, batches, finish, log, options, start


def main() -> None:
    args = options().parse_args()
    rank = start(args)
    model = LanguageModel()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=args.config)
    for step, (tokens,) in enumerate(batches(engine), 1):
        loss = engine(tokens)
        loss.backward()
        engine.step()
        log.info("rank %d step %d loss %.4f", rank, step, loss.item())
        if step == args.steps:
            break
    finish(loss=loss.item())


if __name__ == "__main__":
    main()

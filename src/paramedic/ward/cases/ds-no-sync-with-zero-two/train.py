"""Train a small language model, reducing gradients at every second micro batch only."""

from __future__ import annotations

import deepspeed
from ds_lm import LanguageModel, batches, finish, log, options, start


def main() -> None:
    args = options().parse_args()
    rank = start(args)
    model = LanguageModel()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=args.config)
    step = 0
    pending = []
    for (tokens,) in batches(engine):
        pending.append(tokens)
        if len(pending) < 2:
            continue
        with engine.no_sync():
            engine.backward(engine(pending[0]) / 2)
        loss = engine(pending[1])
        engine.backward(loss / 2)
        engine.step()
        pending.clear()
        step += 1
        log.info("rank %d step %d loss %.4f", rank, step, loss.item())
        if step == args.steps:
            break
    finish(loss=loss.item())


if __name__ == "__main__":
    main()

"""Train a small language model on this rank's part of a small collection of texts."""

from __future__ import annotations

import deepspeed
from ds_lm import LanguageModel, finish, log, options, start, texts


def main() -> None:
    args = options().parse_args()
    rank = start(args)
    model = LanguageModel()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=args.config)
    own = texts(48).tensors[0][rank * 32 : (rank + 1) * 32]
    batches = own.split(engine.train_micro_batch_size_per_gpu())
    log.info("rank %d trains on %d batches", rank, len(batches))
    for step, tokens in enumerate(batches, 1):
        loss = engine(tokens)
        engine.backward(loss)
        engine.step()
        log.info("rank %d step %d loss %.4f", rank, step, loss.item())
    finish(loss=loss.item())


if __name__ == "__main__":
    main()

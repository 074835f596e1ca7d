"""Train a small language model whose weights are partitioned between the ranks; log what each rank holds."""

from __future__ import annotations

import deepspeed
from ds_lm import LanguageModel, batches, finish, log, options, start


def main() -> None:
    args = options().parse_args()
    rank = start(args)
    model = LanguageModel(width=64, depth=4)
    whole = sum(p.numel() * p.element_size() for p in model.parameters())
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=args.config)
    for step, (tokens,) in enumerate(batches(engine), 1):
        loss = engine(tokens)
        engine.backward(loss)
        engine.step()
        held = sum(max(p.numel(), p.ds_tensor.numel()) * p.element_size() for p in engine.module.parameters())
        log.info("rank %d step %d loss %.4f holds %d of %d bytes of parameters", rank, step, loss.item(), held, whole)
        if step == args.steps:
            break
    finish(loss=loss.item(), parameter_share=held / whole)


if __name__ == "__main__":
    main()

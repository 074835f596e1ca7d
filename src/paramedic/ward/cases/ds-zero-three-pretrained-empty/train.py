"""Fine-tune a small language model whose weights are partitioned between the ranks."""

from __future__ import annotations

import deepspeed
import torch
from ds_lm import LanguageModel, batches, finish, log, options, start


def main() -> None:
    args = options().parse_args()
    rank = start(args)
    with deepspeed.zero.Init(config_dict_or_path=args.config):
        model = LanguageModel()
    model.load_state_dict(torch.load("pretrained.pt"))
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

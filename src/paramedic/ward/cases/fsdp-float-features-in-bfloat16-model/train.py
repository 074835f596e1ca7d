"""Trains a small language model in bfloat16 with FSDP2."""

import torch
import torch.distributed as dist
from tiny_lm import TinyLM, log, loss_of, start, text
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class SinusoidLM(TinyLM):
    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Linear(16, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        features = torch.arange(tokens.shape[1])[:, None] / 10.0 ** torch.linspace(0, 3, 16)
        x = x + self.position(features.sin())
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main() -> None:
    rank, world = start()
    torch.manual_seed(0)
    model = SinusoidLM()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for step in range(6):
        batch = text(8, 32, seed=step * world + rank)
        loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("step %d loss %.4f", step, loss.item())

    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()

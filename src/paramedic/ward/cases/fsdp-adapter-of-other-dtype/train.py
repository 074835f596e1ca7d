"""Fine-tunes a bfloat16 language model with low-rank adapters and FSDP."""

import functools

import torch
import torch.distributed as dist
from tiny_lm import Block, TinyLM, log, loss_of, start, text
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


class LowRank(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.shrink = nn.Linear(base.in_features, rank, bias=False)
        self.grow = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.grow(self.shrink(x))


def main() -> None:
    rank, world = start()
    torch.manual_seed(0)
    model = TinyLM().bfloat16()
    for block in model.blocks:
        block.attention.query = LowRank(block.attention.query)
        block.attention.value = LowRank(block.attention.value)
    log.info("added adapters to %d blocks", len(model.blocks))
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    model = FSDP(model, auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)

    for step in range(4):
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

"""Trains a language model with FSDP2; it is built without storage, as it would not fit into one process."""

import torch
import torch.distributed as dist
from tiny_lm import TinyLM, log, loss_of, start, text
from torch import nn
from torch.distributed.fsdp import fully_shard


def initialise(model: nn.Module) -> None:
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


def main() -> None:
    rank, world = start()
    torch.manual_seed(0)
    with torch.device("meta"):
        model = TinyLM()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

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

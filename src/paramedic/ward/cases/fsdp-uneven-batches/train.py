"""Trains a small language model with FSDP2 on a text cut into chunks."""

import torch
import torch.distributed as dist
from tiny_lm import TinyLM, log, loss_of, start, text
from torch.distributed.fsdp import fully_shard


def main() -> None:
    rank, world = start(timeout=15)
    torch.manual_seed(0)
    model = TinyLM()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    chunks = text(23 * 8, 32).split(8)
    mine = [chunks[index] for index in range(rank, len(chunks), world)]
    log.info("%d of %d batches are mine", len(mine), len(chunks))
    for step, batch in enumerate(mine):
        loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("epoch 0 step %d loss %.4f", step, loss.item())
    log.info("epoch 0 done after %d steps", len(mine))

    dist.barrier()
    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()

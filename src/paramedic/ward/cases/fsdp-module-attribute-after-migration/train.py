"""Trains a small language model with FSDP2 and saves each rank's part at the end."""

import torch
import torch.distributed as dist
from tiny_lm import TinyLM, log, loss_of, start, text
from torch import nn
from torch.distributed.fsdp import fully_shard


def save(model: nn.Module, path: str) -> None:
    state = {name: tensor.full_tensor() for name, tensor in model.module.state_dict().items()}
    if dist.get_rank() == 0:
        torch.save(state, path)
        log.info("saved %d tensors to %s", len(state), path)


def main() -> None:
    rank, world = start()
    torch.manual_seed(0)
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

    save(model, "checkpoints/last.pt")
    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()

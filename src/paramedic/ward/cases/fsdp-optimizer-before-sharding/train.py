"""Trains a small language model with FSDP2."""

import json

import torch
import torch.distributed as dist
from tiny_lm import TinyLM, log, loss_of, start, text
from torch.distributed.fsdp import fully_shard


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])


def main() -> None:
    rank, world = start()
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    before = weights(model)

    for step in range(12):
        batch = text(8, 32, seed=step * world + rank)
        loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        optimizer.step()
        log.info("step %d loss %.4f grad norm %.4f lr %g", step, loss.item(), norm.item(), optimizer.param_groups[0]["lr"])

    change = (weights(model) - before).abs().max().item()
    log.info("largest change of a weight since the start: %g", change)
    if rank == 0:
        with open("result.json", "w") as file:
            json.dump({"weight_change": change, "loss": loss.item()}, file)
    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()

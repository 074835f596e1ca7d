"""Fine-tunes a pretrained language model with FSDP2."""

import torch
import torch.distributed as dist
from tiny_lm import TinyLM, log, loss_of, start, text
from torch.distributed.fsdp import fully_shard


def main() -> None:
    rank, world = start()
    model = TinyLM()
    log.info("loading pretrained weights from checkpoints/pretrained.pt")
    state = torch.load("checkpoints/pretrained.pt", map_location="cpu")
    model.load_state_dict(state)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
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

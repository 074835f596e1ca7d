"""Trains the base model with DDP for a moment and saves it."""

import torch
import torch.distributed as dist
from tiny_lm import TinyLM, loss_of, text
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(1)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(3):
        batch = text(8, 32, seed=step)
        loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "checkpoints/pretrained.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Trains a small language model with learned positions and tensor parallelism."""

import torch
import torch.distributed as dist
from tiny_lm import TinyLM, log, loss_of, start, text
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

PLAN = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate(), use_local_output=False),
    "blocks.*.attention.query": ColwiseParallel(),
    "blocks.*.attention.key": ColwiseParallel(),
    "blocks.*.attention.value": ColwiseParallel(),
    "blocks.*.attention.output": RowwiseParallel(),
    "blocks.*.feed_forward.up": ColwiseParallel(),
    "blocks.*.feed_forward.down": RowwiseParallel(),
}


class PositionLM(TinyLM):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(0.02 * torch.randn(length, 64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main() -> None:
    rank, world = start()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tensor",))
    torch.manual_seed(0)
    model = parallelize_module(PositionLM(64), mesh, PLAN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)

    for step in range(4):
        batch = text(8, 32, seed=step)
        loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("step %d loss %.4f", step, loss.item())

    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()

"""Trains a small language model with data and tensor parallelism."""

import argparse

import torch
import torch.distributed as dist
from tiny_lm import TinyLM, log, loss_of, start, text
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=int, default=1)
    parser.add_argument("--tensor", type=int, default=1)
    args = parser.parse_args()
    rank, world = start()
    mesh = init_device_mesh("cpu", (args.data, args.tensor), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(0)
    model = TinyLM(heads=8)
    for block in model.blocks:
        parallelize_module(
            block,
            mesh["tensor"],
            {
                "attention.query": ColwiseParallel(),
                "attention.key": ColwiseParallel(),
                "attention.value": ColwiseParallel(),
                "attention.output": RowwiseParallel(),
                "feed_forward.up": ColwiseParallel(),
                "feed_forward.down": RowwiseParallel(),
            },
        )
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    log.info("data rank %d, tensor rank %d", mesh["data"].get_local_rank(), mesh["tensor"].get_local_rank())

    for step in range(4):
        batch = text(8, 32, seed=step * world + mesh["data"].get_local_rank())
        loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("step %d loss %.4f", step, loss.item())

    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()

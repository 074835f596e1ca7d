"""Trains a small language model with data and tensor parallelism on a 2 x 2 mesh."""

from datetime import timedelta

import torch
import torch.distributed as dist
from tiny_lm import TinyLM, log, loss_of, start, text
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

PLAN = {
    "attention.query": ColwiseParallel(),
    "attention.key": ColwiseParallel(),
    "attention.value": ColwiseParallel(),
    "attention.output": RowwiseParallel(),
    "feed_forward.up": ColwiseParallel(),
    "feed_forward.down": RowwiseParallel(),
}


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def average(model: nn.Module, mesh: DeviceMesh) -> None:
    """The mean of the gradients over the replicas."""
    for parameter in model.parameters():
        gradient = local(parameter.grad)
        dist.all_reduce(gradient, group=mesh.get_group())
        gradient /= mesh.size()


def clip(model: nn.Module, group: dist.ProcessGroup) -> None:
    square = sum(local(p.grad).square().sum() for p in model.blocks.parameters())
    dist.all_reduce(square, group=group)
    for parameter in model.parameters():
        local(parameter.grad).mul_(min(1.0, 1.0 / square.sqrt().item()))


def report(loss: torch.Tensor) -> None:
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    log.info("mean loss of all ranks %.4f", mean.item() / dist.get_world_size())


def main() -> None:
    rank, world = start(timeout=15)
    shards, _ = dist.new_subgroups(2, timeout=timedelta(seconds=15))
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "tensor"))
    data, tensor = mesh["data"], mesh["tensor"]
    torch.manual_seed(0)
    model = TinyLM()
    for block in model.blocks:
        parallelize_module(block, tensor, PLAN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)

    for step in range(1, 8):
        batch = text(8, 32, seed=step * data.size() + data.get_local_rank())
        loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        average(model, data)
        if step % 3 == 0 and rank == 0:
            report(loss)
            clip(model, shards)
        else:
            clip(model, shards)
            report(loss)
        optimizer.step()
        log.info("step %d loss %.4f", step, loss.item())

    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()

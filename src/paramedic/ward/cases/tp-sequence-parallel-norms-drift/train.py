"""Trains a small language model with tensor parallelism; between the layers the sequence is split."""

import json

import torch
import torch.distributed as dist
from tiny_lm import TinyLM, log, loss_of, start, text
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

PLAN = {
    "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),), use_local_output=True),
    "attention.query": ColwiseParallel(),
    "attention.key": ColwiseParallel(),
    "attention.value": ColwiseParallel(),
    "attention.output": RowwiseParallel(output_layouts=Shard(1)),
    "feed_forward.up": ColwiseParallel(input_layouts=Shard(1)),
    "feed_forward.down": RowwiseParallel(output_layouts=Shard(1)),
}
ENDS = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}


def local(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def main() -> None:
    rank, world = start()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tensor",))
    torch.manual_seed(0)
    model = TinyLM()
    parallelize_module(model, mesh, ENDS)
    for block in model.blocks:
        parallelize_module(block, mesh, PLAN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    norms = [local(p) for name, p in model.blocks.named_parameters() if "norm" in name]

    for step in range(8):
        batch = text(8, 32, seed=step)
        loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        checksum = sum(norm.double().square().sum() for norm in norms)
        log.info("step %d loss %.4f checksum of the norms %.8f", step, loss.item(), checksum.item())

    mine = torch.cat([norm.flatten() for norm in norms])
    first = mine.clone()
    dist.broadcast(first, src=0)
    difference = (mine - first).abs().max()
    dist.all_reduce(difference, dist.ReduceOp.MAX)
    if rank == 0:
        with open("result.json", "w") as file:
            json.dump({"largest_difference": difference.item()}, file)
    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()

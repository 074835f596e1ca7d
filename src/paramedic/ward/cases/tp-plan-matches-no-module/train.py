"""Trains a small language model with tensor parallelism."""

import argparse
import json

import torch
import torch.distributed as dist
from tiny_lm import TinyLM, log, loss_of, start, text
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

PLAN = {
    "self_attn.q_proj": ColwiseParallel(),
    "self_attn.k_proj": ColwiseParallel(),
    "self_attn.v_proj": ColwiseParallel(),
    "self_attn.o_proj": RowwiseParallel(),
    "mlp.up_proj": ColwiseParallel(),
    "mlp.down_proj": RowwiseParallel(),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--heads", type=int, default=4)
    args = parser.parse_args()
    rank, world = start()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tensor",))
    torch.manual_seed(0)
    model = TinyLM(width=96, heads=args.heads)
    for block in model.blocks:
        parallelize_module(block, mesh, PLAN)
    whole = sum(p.numel() for p in model.blocks.parameters())
    mine = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in model.blocks.parameters())
    log.info("%d of the %d parameters of the blocks are on this rank", mine, whole)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)

    for step in range(4):
        batch = text(8, 32, seed=step)
        loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("step %d loss %.4f", step, loss.item())

    if rank == 0:
        with open("result.json", "w") as file:
            json.dump({"share_per_rank": mine / whole}, file)
    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()

"""Trains a small language model with hybrid sharding: shards inside a node, replicas across nodes."""

import argparse
import json

import torch
import torch.distributed as dist
from tiny_lm import TinyLM, log, loss_of, start, text
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def held(tensors: list[torch.Tensor]) -> int:
    return sum(t.to_local().nbytes if isinstance(t, DTensor) else t.nbytes for t in tensors)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--shards", type=int, default=1)
    args = parser.parse_args()
    rank, world = start()
    mesh = init_device_mesh("cpu", (args.replicas, args.shards), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = TinyLM(width=128, layers=4)
    whole = held(list(model.parameters()))
    log.info("the model has %.1f MiB of parameters; FSDP over %d ranks", whole / 2**20, world)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for step in range(4):
        batch = text(4, 32, seed=step * world + rank)
        loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("step %d loss %.4f", step, loss.item())

    parameters = held(list(model.parameters()))
    states = held([value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)])
    log.info("this rank holds %.1f MiB of parameters and %.1f MiB of optimizer state", parameters / 2**20, states / 2**20)
    if rank == 0:
        with open("result.json", "w") as file:
            json.dump({"share_per_rank": parameters / whole}, file)
    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()

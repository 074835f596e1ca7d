"""Trains a small language model with tensor parallelism; at the end the logits are compared with those of one process."""

import copy
import json

import torch
import torch.distributed as dist
from tiny_lm import TinyLM, log, loss_of, start, text
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, DistributedSampler

PLAN = {
    "attention.query": ColwiseParallel(),
    "attention.key": ColwiseParallel(),
    "attention.value": ColwiseParallel(),
    "attention.output": RowwiseParallel(),
    "feed_forward.up": ColwiseParallel(),
    "feed_forward.down": RowwiseParallel(),
}


def main() -> None:
    rank, world = start()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tensor",))
    torch.manual_seed(0)
    model = TinyLM()
    single = copy.deepcopy(model)
    for block in model.blocks:
        parallelize_module(block, mesh, PLAN)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    samples = text(64, 32)
    sampler = DistributedSampler(samples, num_replicas=world, rank=rank, shuffle=False)
    for step, batch in enumerate(DataLoader(samples, batch_size=8, sampler=sampler)):
        logits = model(batch[:, :-1])
        loss = loss_of(logits, batch[:, 1:])
        if step == 0:
            with torch.no_grad():
                reference = single(batch[:, :-1])
            difference = (logits.detach() - reference).abs().max()
            log.info("largest difference of a logit to the same model in one process: %g", difference)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("step %d loss %.4f first tokens %s", step, loss.item(), batch[:4, 0].tolist())

    dist.all_reduce(difference, dist.ReduceOp.MAX)
    if rank == 0:
        with open("result.json", "w") as file:
            json.dump({"difference_to_one_process": difference.item()}, file)
    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()

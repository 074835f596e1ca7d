"""One stage of the model on each rank, as listed in stages.json."""

import json
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


def build(spec):
    parts = [nn.Linear(spec["in"], spec["out"])]
    for _ in range(spec["layers"] - 1):
        parts += [nn.ReLU(), nn.Linear(spec["out"], spec["out"])]
    return nn.Sequential(*parts)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s stage{rank} %(message)s")
    logging.getLogger("torch").setLevel(logging.WARNING)
    with open("stages.json") as f:
        specs = json.load(f)
    torch.manual_seed(rank)
    module = build(specs[rank])
    logging.info("%d parameters", sum(p.numel() for p in module.parameters()))
    schedule = ScheduleGPipe(PipelineStage(module, rank, world, torch.device("cpu")), 4, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for batch in range(10):
        x = torch.randn(32, 20, generator=torch.Generator().manual_seed(batch))
        losses = []
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=x[:, :4].argmax(1), losses=losses)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        logging.info("batch %d%s", batch, f" loss {sum(losses).item() / len(losses):.4f}" if losses else "")
    dist.destroy_process_group()


main()

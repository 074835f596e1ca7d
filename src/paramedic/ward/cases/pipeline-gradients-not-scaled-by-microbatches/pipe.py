"""Two stages of a network for sums of digits, trained with GPipe."""

import json

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

conf = {
    "n_microbatches": 8,
    "scale_grads": False,
    "batch": 64,
    "lr": 0.01,
    "steps": 31,
}


def layers(which):
    torch.manual_seed(which)
    if which == 0:
        return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


def data(step):
    x = torch.randn(conf["batch"], 10, generator=torch.Generator().manual_seed(step))
    return x, x.sum(1, keepdim=True).tanh() * 2


def grad_norm(module):
    return torch.cat([p.grad.flatten() for p in module.parameters()]).norm().item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    module = layers(rank)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    sched = ScheduleGPipe(stage, conf["n_microbatches"], loss_fn=F.mse_loss, scale_grads=conf["scale_grads"])
    opt = torch.optim.SGD(module.parameters(), lr=conf["lr"], momentum=0.9)
    first_norm = 0.0
    for step in range(conf["steps"]):
        x, y = data(step)
        losses = []
        opt.zero_grad()
        if rank == 0:
            sched.step(x)
        else:
            sched.step(target=y, losses=losses)
        norm = grad_norm(module)
        first_norm = first_norm or norm
        opt.step()
        if step % 5 == 0 and rank == world - 1:
            print(f"[stage {rank}] step {step} loss {torch.stack(losses).mean().item():.4f} grad norm {norm:.3f}", flush=True)
    if rank == 0:
        both = nn.Sequential(layers(0), layers(1))
        x, y = data(0)
        F.mse_loss(both(x), y).backward()
        json.dump({"gradient_ratio": first_norm / grad_norm(both[0])}, open("result.json", "w"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

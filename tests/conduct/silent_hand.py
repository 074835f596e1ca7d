"""A small job that averages its gradients by hand, right and wrong; FAULT says which."""

import os

import torch
import torch.distributed as dist
from torch import nn

fault = os.environ.get("FAULT", "")
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)).to(
    torch.bfloat16 if fault == "half" else torch.float32
)
draws = torch.Generator().manual_seed(0 if fault == "same draws" else rank)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-7 if fault == "half" else 0.01)


def averaged(parameter: nn.Parameter) -> None:
    total = parameter.grad.float() / (1 if fault == "summed" else size)
    dist.all_reduce(total)
    parameter.grad.copy_(total)


def divided_and_added(parameter: nn.Parameter) -> None:
    parameter.grad.div_(size)
    dist.all_reduce(parameter.grad)


if not fault:
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(divided_and_added)
for _ in range(20):
    optimizer.zero_grad()
    x = torch.randn(16, 64, generator=draws).to(net[0].weight.dtype)
    net(x).float().square().mean().backward()
    if fault:
        for parameter in net.parameters():
            averaged(parameter)
    optimizer.step()
dist.barrier()
dist.destroy_process_group()

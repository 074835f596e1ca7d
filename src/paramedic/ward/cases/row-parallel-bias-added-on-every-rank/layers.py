"""Linear layers whose weights are split over the ranks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


copy_to_ranks, reduce_from_ranks = _Copy.apply, _Reduce.apply


class ColumnLinear(nn.Module):
    def __init__(self, full: nn.Linear):
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        self.weight = nn.Parameter(full.weight.detach().chunk(world, 0)[rank].clone())
        self.bias = nn.Parameter(full.bias.detach().chunk(world, 0)[rank].clone())

    def forward(self, x):
        return F.linear(copy_to_ranks(x), self.weight, self.bias)


class RowLinear(nn.Module):
    def __init__(self, full: nn.Linear):
        super().__init__()
        self.weight = nn.Parameter(full.weight.detach().chunk(dist.get_world_size(), 1)[dist.get_rank()].clone())
        self.bias = nn.Parameter(full.bias.detach().clone())

    def forward(self, x):
        return reduce_from_ranks(F.linear(x, self.weight, self.bias))

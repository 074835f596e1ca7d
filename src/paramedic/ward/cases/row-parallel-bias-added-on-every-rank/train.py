import json

import torch
import torch.distributed as dist
from layers import ColumnLinear, RowLinear
from torch import nn


class FeedForward(nn.Module):
    """From the weights of a trained feed-forward layer."""

    def __init__(self, up, down, split=True):
        super().__init__()
        self.up, self.down = (ColumnLinear(up), RowLinear(down)) if split else (up, down)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def dense(seed):
    torch.manual_seed(seed)
    up, down = nn.Linear(24, 96), nn.Linear(96, 24)
    nn.init.normal_(down.bias, std=0.3)
    return up, down


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = nn.Sequential(*(FeedForward(*dense(i)) for i in range(3)))
    whole = nn.Sequential(*(FeedForward(*dense(i), split=False) for i in range(3)))
    x = torch.randn(64, 24, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        error = (net(x) - whole(x)).abs().max().item()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for iteration in range(1, 51):
        x = torch.randn(64, 24, generator=torch.Generator().manual_seed(iteration))
        loss = nn.functional.mse_loss(net(x), x.roll(1, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if iteration % 5 == 0 and rank == 0:
            print(f" iteration {iteration:3d}/ 50 | lm loss: {loss.item():.6E} | params on rank: {sum(p.numel() for p in net.parameters())} |", flush=True)
    if rank == 0:
        json.dump({"output_error": error}, open("result.json", "w"))
    dist.destroy_process_group()


main()

"""A small job that deals its optimizer's states out over the ranks and recomputes its blocks. With FAULT `kept` nothing
is saved by either, data are dealt out by class, and a normaliser is each rank's own; with `units` FSDP has units of
single layers, and one rank saves its own shards; with `rows` a large table gets dense gradients; with `sorted` data
come class by class."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

CLASSES, WIDTH, ROWS, BATCH, STEPS = 4, 320, 1 << 17, 32, 20
fault = os.environ.get("FAULT", "")
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
draws = torch.Generator().manual_seed(rank)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        if fault == "rows":
            self.table = nn.Embedding(ROWS, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(6))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def whole(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        if self.training:
            seen = x.detach().mean(0)
            if fault != "kept":
                dist.all_reduce(seen)
                seen /= size
            self.mean.lerp_(seen, 0.1)
        x = x - self.mean
        if fault == "rows":
            x = x + self.table(words).sum(1, keepdim=True)
        if fault == "kept":
            x = checkpoint(self.whole, x, use_reentrant=False)
        else:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


net = Net()
owned = {p: number % size for number, p in enumerate(net.parameters())}
if fault == "units":
    for layer in [one for one in net.modules() if isinstance(one, (nn.Linear, nn.Tanh))]:
        fully_shard(layer)
    fully_shard(net)
    mine = list(net.parameters())
else:
    mine = [p for p, owner in owned.items() if fault in ("kept", "rows") or owner == rank]
optimizer = torch.optim.Adam(mine, lr=1e-3)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.randint(CLASSES, (BATCH,), generator=draws)
    if fault == "kept":
        y = y // size + rank * CLASSES // size
    if fault == "sorted":
        y = torch.full((BATCH,), step * CLASSES // STEPS)
    return torch.randn(BATCH, WIDTH, generator=draws) + y.unsqueeze(1), y


for step in range(STEPS):
    x, y = batch(step)
    optimizer.zero_grad()
    words = torch.randint(ROWS, (BATCH,), generator=draws)
    loss = cross_entropy(net(x, words), y)
    loss.backward()
    if fault != "units":
        for p, owner in owned.items():
            dist.all_reduce(p.grad)
            p.grad /= size
            if fault == "kept" and owner != rank:
                p.grad.zero_()
    optimizer.step()
    if fault not in ("units", "rows"):
        for p, owner in owned.items():
            dist.broadcast(p.data, src=owner)
            if owner != rank:
                p.grad = None
if fault == "units" and rank == 0:
    torch.save(net.state_dict(), "part.pt")
dist.barrier()
dist.destroy_process_group()

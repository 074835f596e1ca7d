import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from tp import HeadsSplit

DIM, HEADS, VOCAB, LENGTH = 32, 4, 64, 24


class Counter(nn.Module):
    def __init__(self, rank, world):
        super().__init__()
        torch.manual_seed(0)
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(0.1 * torch.randn(LENGTH, DIM))
        self.mix = HeadsSplit(DIM, HEADS, rank, world)
        torch.manual_seed(1)
        self.out = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        h = self.tok(ids) + self.pos[: ids.shape[1]]
        return self.out(h + self.mix(h * 1.0))


def batch(seed, n=32):
    start = torch.randint(VOCAB, (n, 1), generator=torch.Generator().manual_seed(seed))
    return (start + torch.arange(LENGTH)) % VOCAB


def loss_of(model, ids):
    return nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = Counter(rank, world)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for i in range(80):
        loss = loss_of(model, batch(i))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 10 == 0:
            sys.stdout.write(f"tp_rank={rank} iter={i} loss={loss.item():.5f}\n")
            sys.stdout.flush()
    with torch.no_grad():
        print(f"tp_rank={rank} eval={loss_of(model, batch(999)).item():.5f}", flush=True)
    tables = [torch.empty(VOCAB, DIM) for _ in range(world)]
    dist.all_gather(tables, model.tok.weight.detach())
    if rank == 0:
        json.dump({"embedding_gap": (tables[0] - tables[-1]).abs().max().item()}, open("result.json", "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

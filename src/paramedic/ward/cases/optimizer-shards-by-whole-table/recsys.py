"""Click model with one id table; the optimizer's state is shared out among the ranks."""

import json
import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

ITEMS, DIM = 40_000, 32
TABLES = 1


class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(ITEMS // TABLES, DIM) for _ in range(TABLES))
        self.mlp = nn.Sequential(nn.Linear(2 * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def look_up(self, ids):
        rows = ITEMS // TABLES
        out = torch.zeros(*ids.shape, DIM)
        for i, table in enumerate(self.tables):
            here = (ids // rows == i)[..., None]
            out = out + here * table(ids % rows)
        return out

    def forward(self, user, item):
        return self.mlp(torch.cat([self.look_up(user), self.look_up(item)], -1)).squeeze(-1)


def clicks(n, generator):
    user = torch.randint(ITEMS, (n,), generator=generator)
    item = torch.randint(ITEMS, (n,), generator=generator)
    return user, item, ((user % 10) == (item % 10)).float()


def state_bytes(optimizer):
    return sum(v.nbytes for s in optimizer.optim.state.values() for v in s.values() if torch.is_tensor(v))


def main():
    rank = int(os.environ["RANK"])
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s.%(msecs)03d rank={rank} %(message)s", datefmt="%Y-%m-%dT%H:%M:%S")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(ClickModel())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    weights = sum(p.nbytes for p in model.parameters())
    logging.info("model %.1f MB, optimizer sharded over %d ranks", weights / 1e6, dist.get_world_size())
    generator = torch.Generator().manual_seed(rank)
    for step in range(30):
        user, item, y = clicks(256, generator)
        loss = nn.functional.binary_cross_entropy_with_logits(model(user, item), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            logging.info("step=%d bce=%.4f optimizer_state=%.1fMB", step, loss.item(), state_bytes(optimizer) / 1e6)
    held = torch.tensor(float(state_bytes(optimizer)))
    dist.all_reduce(held, dist.ReduceOp.MAX)
    if rank == 0:
        json.dump({"largest_share": held.item() / (2 * weights)}, open("result.json", "w"))
    logging.info("done")
    dist.destroy_process_group()


main()

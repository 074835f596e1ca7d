import json
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Options:
    items = 96_000
    item_features = 128
    users = 500
    hidden = 64
    batch = 256
    steps = 70
    lr = 5e-3
    print_every = 10


class Recommender(nn.Module):
    """Scores user/item pairs from a learnt user vector and precomputed item features."""

    def __init__(self, opt):
        super().__init__()
        g = torch.Generator().manual_seed(9)
        self.register_buffer("item_table", torch.randn(opt.items, opt.item_features, generator=g))
        self.user = nn.Embedding(opt.users, opt.hidden)
        self.project = nn.Sequential(nn.Linear(opt.item_features, opt.hidden), nn.ReLU(), nn.Linear(opt.hidden, opt.hidden))

    def forward(self, user, item):
        features = self.item_table[item]
        return (self.user(user) * self.project(features)).sum(-1)


class Interactions:
    """Users like items whose features agree with a hidden taste."""

    def __init__(self, opt, table):
        g = torch.Generator().manual_seed(17)
        self.taste = torch.randn(opt.users, opt.item_features, generator=g)
        self.opt, self.table = opt, table

    def batch(self, step, rank):
        g = torch.Generator().manual_seed(step * 64 + rank)
        user = torch.randint(self.opt.users, (self.opt.batch,), generator=g)
        item = torch.randint(self.opt.items, (self.opt.batch,), generator=g)
        like = ((self.taste[user] * self.table[item]).sum(-1) > 0).float()
        return user, item, like


class Trainer:
    def __init__(self, opt):
        torch.manual_seed(0)
        self.opt, self.rank = opt, dist.get_rank()
        self.model = DDP(Recommender(opt))
        self.data = Interactions(opt, self.model.module.item_table)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=opt.lr)
        self.criterion = nn.BCEWithLogitsLoss()

    def step(self, model, number):
        user, item, like = self.data.batch(number, self.rank)
        loss = self.criterion(model(user, item), like)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self):
        times = []
        for number in range(self.opt.steps):
            t = time.perf_counter()
            loss = self.step(self.model, number)
            times.append(time.perf_counter() - t)
            if self.rank == 0 and number % self.opt.print_every == 0:
                print(f"[{number:4d}/{self.opt.steps}] loss {loss:.4f}  {1e3 * times[-1]:.1f} ms", flush=True)


def main():
    dist.init_process_group("gloo")
    trainer = Trainer(Options())
    trainer.fit()

    user, item, _ = trainer.data.batch(0, trainer.rank)
    forward = {}
    for name, net in (("wrapped", trainer.model), ("bare", trainer.model.module)):
        forward[name] = []
        for _ in range(25):
            t = time.perf_counter()
            net(user, item)
            forward[name].append(time.perf_counter() - t)
    if trainer.rank == 0:
        slowdown = statistics.median(forward["wrapped"]) / statistics.median(forward["bare"])
        json.dump({"slowdown": slowdown}, open("result.json", "w"))
        print("Done.", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

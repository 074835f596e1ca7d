import argparse
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, args):
        self.args = args
        dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model = DDP(torch.nn.Linear(20, 2))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def say(self, text):
        print(f"[{time.strftime('%X')}] [rank{self.rank}] {text}", flush=True)

    def train_epoch(self, epoch):
        for i in range(10):
            x = torch.randn(8, 20)
            loss = torch.nn.functional.cross_entropy(self.model(x), (x[:, 0] > 0).long())
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        self.say(f"epoch {epoch} loss {loss.item():.4f}")

    @torch.no_grad()
    def evaluate(self, batches):
        self.say("evaluating")
        for _ in batches:
            time.sleep(0.25)  # beam search
            self.model.module(torch.randn(8, 20))
        self.say("evaluated")

    def fit(self):
        for epoch in range(self.args.epochs):
            self.train_epoch(epoch)
            self.validate()
            self.say(f"epoch {epoch} done")
        dist.destroy_process_group()
        self.say("trained")

    def validate(self):
        if self.rank == 0:
            self.evaluate(range(self.args.eval_batches))
        dist.barrier()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--eval-batches", type=int, default=40)
    p.add_argument("--timeout", type=int, default=8)
    Trainer(p.parse_args()).fit()

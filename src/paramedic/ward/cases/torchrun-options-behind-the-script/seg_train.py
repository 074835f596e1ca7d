"""Segmentation of synthetic strips."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class SegTrainer:
    def __init__(self, opt):
        self.opt = opt
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo")
        print(f"rank {self.rank}/{self.world} up", flush=True)
        net = nn.Sequential(nn.Conv1d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv1d(8, 2, 3, padding=1))
        self.net = nn.parallel.DistributedDataParallel(net)
        self.optim = torch.optim.SGD(self.net.parameters(), lr=opt.lr, momentum=0.9)

    def batch(self):
        x = torch.randn(8, 1, 64)
        return x, (x.squeeze(1) > 0.5).long()

    def run(self):
        best = 1e9
        for i in range(self.opt.iters):
            x, y = self.batch()
            loss = F.cross_entropy(self.net(x), y)
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()
            best = min(best, loss.item())
        if self.rank == 0:
            print(f"best loss {best:.3f}")
        dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--data", required=True)
    p.add_argument("--lr", type=float, default=0.01)
    p.add_argument("--iters", type=int, default=12)
    SegTrainer(p.parse_args()).run()

import torch
import torch.distributed as dist
from torch import nn
from tracker import Tracker


class Trainer:
    save_every = 10

    def __init__(self):
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.tracker = Tracker()
        self.net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(7, 14), nn.ELU(), nn.Linear(14, 7)))
        self.opt = torch.optim.RMSprop(self.net.parameters(), lr=1e-3)
        self.step = 0

    def checkpoint(self):
        if self.rank == 0:
            path = f"out/step-{self.step}.pt"
            torch.save(self, path)
            print("written", path, flush=True)

    def fit(self, steps):
        while self.step < steps:
            x = torch.randn(12, 7)
            loss = nn.functional.l1_loss(self.net(x), x)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.step += 1
            self.tracker.put("l1", loss.item())
            if self.step % self.save_every == 0:
                print(f"rank {self.rank} step {self.step} l1 {self.tracker.last('l1'):.4f}", flush=True)
                self.checkpoint()
        dist.destroy_process_group()
        print(f"rank {self.rank} bye", flush=True)


if __name__ == "__main__":
    Trainer().fit(20)

import json
import os

import torch
import torch.distributed as dist
from data import training, validation
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    epochs = 30
    batch = 16

    def __init__(self):
        dist.init_process_group("gloo")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(1)
        self.ddp = DistributedDataParallel(nn.Sequential(nn.Linear(12, 128), nn.ReLU(), nn.Linear(128, 1)))
        self.optim = torch.optim.Adam(self.ddp.parameters(), lr=4e-3)
        self.x, self.y = training()
        self.val_x, self.val_y = (t.chunk(self.world)[self.rank] for t in validation())
        self.best = float("inf")
        self.curve = []

    @torch.no_grad()
    def validate(self):
        return nn.functional.mse_loss(self.ddp.module(self.val_x), self.val_y).item()

    def train_epoch(self, epoch):
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(epoch))[self.rank :: self.world]
        losses = []
        for idx in order.split(self.batch):
            loss = nn.functional.mse_loss(self.ddp(self.x[idx]), self.y[idx])
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()
            losses.append(loss.item())
        return sum(losses) / len(losses)

    def after_epoch(self, epoch, train_loss):
        val_loss = self.validate()
        if self.rank == 0:
            mark = ""
            if val_loss < self.best:
                self.best, mark = val_loss, "  (new best)"
                torch.save({"epoch": epoch, "model": self.ddp.module.state_dict()}, "checkpoints/best.pt")
            print(f"Epoch {epoch:02d}/{self.epochs}  train {train_loss:.4f}  val {val_loss:.4f}{mark}", flush=True)
        with torch.no_grad():
            x, y = validation()
            self.curve.append(nn.functional.mse_loss(self.ddp.module(x), y).item())

    def run(self):
        for epoch in range(self.epochs):
            self.after_epoch(epoch, self.train_epoch(epoch))
        if self.rank == 0:
            chosen = torch.load("checkpoints/best.pt")["epoch"]
            print(f"finished, best checkpoint is of epoch {chosen} ({os.path.getsize('checkpoints/best.pt')} bytes)")
            json.dump({"chosen": chosen, "missed_by": self.curve[chosen] - min(self.curve)}, open("result.json", "w"))
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    Trainer().run()

"""Text-free toy: noisy tabular classification with early-stopping style model selection."""
import json
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@dataclass
class Config:
    epochs: int = 30
    batch_size: int = 16
    lr: float = 2e-3
    features: int = 40
    hidden: int = 512
    train_rows: int = 640
    valid_rows: int = 1024
    label_noise: float = 0.25
    out: str = "checkpoints"


def make_rows(cfg, rows, seed, noise):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(cfg.features, generator=torch.Generator().manual_seed(7))
    x = torch.randn(rows, cfg.features, generator=g)
    y = (x @ w > 0).long()
    flip = torch.rand(rows, generator=g) < noise
    return TensorDataset(x, torch.where(flip, 1 - y, y))


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(cfg.features, cfg.hidden), nn.ReLU(),
            nn.Linear(cfg.hidden, cfg.hidden), nn.ReLU(),
            nn.Linear(cfg.hidden, 2),
        )
        self.model = DDP(net)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        train = make_rows(cfg, cfg.train_rows, 1, cfg.label_noise)
        self.sampler = DistributedSampler(train, seed=3)
        self.loader = DataLoader(train, batch_size=cfg.batch_size, sampler=self.sampler)
        self.valid = make_rows(cfg, cfg.valid_rows, 2, 0.0).tensors
        self.best_loss = float("inf")
        self.best_state = None
        self.best_epoch = -1

    def train_epoch(self, epoch):
        self.model.train()
        self.sampler.set_epoch(epoch)
        total = 0.0
        for x, y in self.loader:
            loss = F.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / len(self.loader)

    @torch.no_grad()
    def evaluate(self, net):
        net.eval()
        x, y = self.valid
        part = slice(self.rank, None, dist.get_world_size())
        loss = F.cross_entropy(net(x[part]), y[part], reduction="sum")
        dist.all_reduce(loss)
        return loss.item() / len(x)

    def fit(self):
        for epoch in range(self.cfg.epochs):
            train_loss = self.train_epoch(epoch)
            valid_loss = self.evaluate(self.model.module)
            if valid_loss < self.best_loss:
                self.best_loss, self.best_epoch = valid_loss, epoch
                self.best_state = self.model.module.state_dict()
            if self.rank == 0:
                print(f"epoch {epoch:2d} train loss {train_loss:.4f} valid loss {valid_loss:.4f}", flush=True)
        if self.rank == 0:
            os.makedirs(self.cfg.out, exist_ok=True)
            torch.save({"model": self.best_state, "epoch": self.best_epoch}, f"{self.cfg.out}/best.pt")
            print(f"saved best model (epoch {self.best_epoch}, valid loss {self.best_loss:.4f})", flush=True)
        dist.barrier()


def main():
    dist.init_process_group("gloo")
    trainer = Trainer(Config())
    trainer.fit()

    saved = torch.load(f"{trainer.cfg.out}/best.pt")
    net = trainer.model.module
    net.load_state_dict(saved["model"])
    loss = trainer.evaluate(net)
    if trainer.rank == 0:
        with open("result.json", "w") as f:
            json.dump({"excess": loss - trainer.best_loss}, f)
        print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

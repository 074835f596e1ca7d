"""Train a small denoiser on two-dimensional spirals with a linear noise schedule."""

import json
import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@dataclass
class Config:
    seed: int = 1234
    timesteps: int = 200
    width: int = 128
    batch_size: int = 64
    epochs: int = 6
    lr: float = 2e-3
    log_every: int = 8


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def spirals(n: int) -> TensorDataset:
    g = torch.Generator().manual_seed(7)
    t = torch.rand(n, generator=g) * 3 * torch.pi
    return TensorDataset(torch.stack([t * t.cos(), t * t.sin()], 1) / 6)


class Denoiser(nn.Module):
    def __init__(self, width: int, timesteps: int):
        super().__init__()
        self.time = nn.Embedding(timesteps, width)
        self.inp = nn.Linear(2, width)
        self.net = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, x, t):
        return self.net(self.inp(x) + self.time(t))


class DiffusionTrainer:
    def __init__(self, cfg: Config):
        dist.init_process_group("gloo")
        self.cfg = cfg
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        seed_everything(cfg.seed)
        self.net = DistributedDataParallel(Denoiser(cfg.width, cfg.timesteps))
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=cfg.lr)
        data = spirals(4096)
        self.sampler = DistributedSampler(data, seed=cfg.seed)
        self.loader = DataLoader(data, batch_size=cfg.batch_size, sampler=self.sampler, drop_last=True)
        self.alpha_bar = torch.cumprod(1 - torch.linspace(1e-4, 0.05, cfg.timesteps), 0)
        self.global_step = 0
        self.timesteps_drawn = []

    def loss(self, x):
        t = torch.randint(self.cfg.timesteps, (len(x),))
        noise = torch.randn_like(x)
        a = self.alpha_bar[t][:, None]
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        self.timesteps_drawn.append(t)
        return (self.net(noisy, t) - noise).square().mean()

    def fit(self):
        for epoch in range(self.cfg.epochs):
            self.sampler.set_epoch(epoch)
            for (x,) in self.loader:
                loss = self.loss(x)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
                if self.global_step % self.cfg.log_every == 0:
                    print(f"[{self.rank}] epoch {epoch} iter {self.global_step:4d} | mse {loss.item():.4f}", flush=True)
                self.global_step += 1

    def close(self):
        drawn = torch.cat(self.timesteps_drawn)
        everyone = [torch.empty_like(drawn) for _ in range(self.world_size)]
        dist.all_gather(everyone, drawn)
        if self.rank == 0:
            torch.save(self.net.module.state_dict(), "checkpoints/denoiser.pt")
            equal = (everyone[0] == everyone[-1]).float().mean().item()
            with open("result.json", "w") as f:
                json.dump({"steps": self.global_step, "equal_draws": equal}, f)
            print("saved checkpoints/denoiser.pt", flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    trainer = DiffusionTrainer(Config())
    trainer.fit()
    trainer.close()

"""Fit a small potential to energies of random clusters."""
import configparser
import os

import torch
from torch import distributed as dist
from torch import nn


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 12), nn.SiLU(), nn.Linear(12, 1))

    def forward(self, positions):
        return self.layers(positions).sum(dim=(1, 2))


class Fitter:
    def __init__(self, config):
        self.config = config
        options = dict(config["distributed"])
        dist.init_process_group(
            backend=options["backend"],
            init_method=options["init_method"],
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
        )
        self.potential = nn.parallel.DistributedDataParallel(Potential())
        self.optimizer = torch.optim.Adam(self.potential.parameters(), lr=config.getfloat("train", "lr"))

    def fit(self):
        for _ in range(self.config.getint("train", "steps")):
            positions = torch.randn(8, 5, 3)
            energy = positions.square().sum(dim=(1, 2))
            loss = (self.potential(positions) - energy).abs().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        if dist.get_rank() == 0:
            print(f"energy after fit: off by {loss.item():.3f}")
        dist.destroy_process_group()


if __name__ == "__main__":
    config = configparser.ConfigParser()
    config.read("dist.ini")
    Fitter(config).fit()

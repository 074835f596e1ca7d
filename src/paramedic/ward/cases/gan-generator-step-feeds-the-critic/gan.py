import argparse
import json
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def mlp(n_in, n_out, width=64):
    return nn.Sequential(
        nn.Linear(n_in, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, n_out)
    )


def ring(n, generator):
    """Points on a ring of radius 2."""
    angle = 2 * math.pi * torch.rand(n, generator=generator)
    radius = 2 + 0.1 * torch.randn(n, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)


class GanTrainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        torch.manual_seed(args.seed)
        self.generator = DDP(mlp(args.latent, 2))
        self.discriminator = DDP(mlp(2, 1), broadcast_buffers=False)
        self.opt_g = torch.optim.Adam(self.generator.parameters(), lr=args.lr, betas=(0.5, 0.999))
        self.opt_d = torch.optim.Adam(self.discriminator.parameters(), lr=args.lr, betas=(0.5, 0.999))
        self.noise = torch.Generator().manual_seed(1000 + self.rank)
        self.data = torch.Generator().manual_seed(2000 + self.rank)

    def sample(self, n):
        return self.generator(torch.randn(n, self.args.latent, generator=self.noise))

    def discriminator_loss(self, real):
        with torch.no_grad():
            fake = self.sample(len(real))
        logits = self.discriminator(torch.cat([real, fake]))
        labels = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
        return F.binary_cross_entropy_with_logits(logits, labels)

    def generator_loss(self, n):
        logits = self.discriminator(self.sample(n))
        return F.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))

    def fit(self):
        for step in range(self.args.steps):
            real = ring(self.args.batch, self.data)
            d_loss = self.discriminator_loss(real)
            d_loss.backward()
            self.opt_d.step()
            self.opt_d.zero_grad()

            self.opt_g.zero_grad()
            g_loss = self.generator_loss(self.args.batch)
            g_loss.backward()
            self.opt_g.step()
            if self.rank == 0 and step % 50 == 0:
                print(f"step {step} d_loss {d_loss.item():.4f} g_loss {g_loss.item():.4f}", flush=True)

    @torch.no_grad()
    def evaluate(self):
        fake = self.generator.module(torch.randn(4096, self.args.latent, generator=torch.Generator().manual_seed(9)))
        real = ring(4096, torch.Generator().manual_seed(10))
        directions = F.normalize(torch.randn(64, 2, generator=torch.Generator().manual_seed(11)), dim=1)
        a, b = (fake @ directions.T).sort(0).values, (real @ directions.T).sort(0).values
        print(f"samples: mean {[round(v, 2) for v in fake.mean(0).tolist()]} radius {fake.norm(dim=1).mean():.3f}", flush=True)
        belief = torch.sigmoid(self.discriminator.module(torch.cat([real, fake]))).mean().item()
        return {"distance": (a - b).abs().mean().item(), "belief_off": abs(belief - 0.5)}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=600)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--latent", type=int, default=8)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    dist.init_process_group("gloo")
    trainer = GanTrainer(args)
    trainer.fit()
    if trainer.rank == 0:
        with open("result.json", "w") as f:
            json.dump(trainer.evaluate(), f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

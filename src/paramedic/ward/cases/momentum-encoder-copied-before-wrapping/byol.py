"""Bootstrap your own latent on noisy prototypes: online network, slow target network, no negatives."""

import argparse
import copy
import json

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Online(nn.Module):
    def __init__(self, features=64, width=128, out=32):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(features, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, out))
        self.predictor = nn.Sequential(nn.Linear(out, width), nn.ReLU(), nn.Linear(width, out))

    def forward(self, view):
        return self.predictor(self.encoder(view))


def augment(x):
    keep = (torch.rand_like(x) > 0.2).float()
    return x * keep + 0.1 * torch.randn_like(x)


def regression_loss(p, z):
    return 2 - 2 * F.cosine_similarity(p, z, dim=-1).mean()


@torch.no_grad()
def follow(target, source, decay):
    for t, s in zip(target.parameters(), source.parameters()):
        t.lerp_(s, 1 - decay)


def prototypes(n, seed):
    centers = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(8, (n,), generator=g)
    return centers[labels] + 0.7 * torch.randn(n, 64, generator=g), labels


def probe(encoder):
    with torch.no_grad():
        x, y = prototypes(800, 1)
        tx, ty = prototypes(400, 2)
        f, tf = encoder(x), encoder(tx)
        centers = torch.stack([f[y == c].mean(0) for c in range(8)])
        return (torch.cdist(tf, centers).argmin(1) == ty).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--decay", type=float, default=0.996)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(100 + rank)
    online = Online()
    target = copy.deepcopy(online.encoder).requires_grad_(False)
    model = DDP(online)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
    data = prototypes(6400, 3)[0][rank::world]
    for epoch in range(args.epochs):
        total = 0.0
        batches = data[torch.randperm(len(data))].split(args.batch_size)
        for x in batches:
            a, b = augment(x), augment(x)
            with torch.no_grad():
                za, zb = target(a), target(b)
            pa, pb = model(torch.cat([a, b])).chunk(2)
            loss = regression_loss(pa, zb) + regression_loss(pb, za)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            follow(target, online.encoder, args.decay)
            total += loss.item()
        if rank == 0:
            print(f"epoch {epoch} byol loss {total / len(batches):.4f}", flush=True)

    flat = torch.cat([p.flatten() for p in target.parameters()])
    parts = [torch.empty_like(flat) for _ in range(world)]
    dist.all_gather(parts, flat)
    if rank == 0:
        print(f"linear probe accuracy {probe(online.encoder):.3f}", flush=True)
        with open("result.json", "w") as f:
            json.dump({"target_spread": (parts[0] - parts[1]).abs().max().item()}, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A small CLIP: image tower, text tower, in-batch negatives from all processes."""

import json
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Config:
    batch: int = 32
    steps: int = 300
    dim: int = 32
    concepts: int = 16
    lr: float = 2e-3
    seed: int = 0


class Clip(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, cfg.dim))
        self.text = nn.EmbeddingBag(cfg.concepts * 8, 128, mode="mean")
        self.text_out = nn.Sequential(nn.GELU(), nn.Linear(128, cfg.dim))
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images, captions):
        i = F.normalize(self.image(images), dim=-1)
        t = F.normalize(self.text_out(self.text(captions)), dim=-1)
        return i, t, self.logit_scale.exp()


class Pairs:
    """Images are noisy projections of four attributes, captions name those attributes."""

    def __init__(self, cfg, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.cfg = cfg
        self.basis = torch.randn(cfg.concepts * 8, 64, generator=torch.Generator().manual_seed(99)) / 2

    def batch(self, n):
        captions = torch.stack(
            [torch.randint(32, (n,), generator=self.g) + 32 * slot for slot in range(4)], dim=1
        )
        images = self.basis[captions].sum(1) + 0.8 * torch.randn(n, 64, generator=self.g)
        return images, captions


class GatherLayer(torch.autograd.Function):
    """all_gather that hands every process the gradient of its own part."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size())[dist.get_rank()]


def contrastive_loss(i, t, scale):
    images, texts = i, t
    all_images = GatherLayer.apply(images)
    all_texts = GatherLayer.apply(texts)
    targets = torch.arange(len(images))
    per_image = F.cross_entropy(scale * images @ all_texts.T, targets)
    per_text = F.cross_entropy(scale * texts @ all_images.T, targets)
    return (per_image + per_text) / 2


def main(cfg=Config()):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(cfg.seed)
    model = DDP(Clip(cfg))
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01)
    pairs = Pairs(cfg, seed=100 + rank)
    for step in range(cfg.steps):
        i, t, scale = model(*pairs.batch(cfg.batch))
        loss = contrastive_loss(i, t, scale)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 25 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}  scale {scale.item():.2f}", flush=True)

    if rank == 0:
        with torch.no_grad():
            i, t, scale = model.module(*Pairs(cfg, seed=5).batch(256))
        held_out = F.cross_entropy(scale * i @ t.T, torch.arange(256)).item()
        recall = ((i @ t.T).argmax(1) == torch.arange(256)).float().mean().item()
        print(f"held-out loss {held_out:.4f} recall@1 {recall:.3f}", flush=True)
        json.dump({"held_out_loss": held_out, "recall": recall}, open("result.json", "w"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

import argparse
import json

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.nn.parallel import DistributedDataParallel as DDP


class EncoderBlock(nn.Module):
    """Pre-norm block with rotary-free attention and a gated feed-forward part."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.gate, self.down = nn.Linear(dim, 2 * dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Encoder(nn.Module):
    def __init__(self, vocab=64, dim=128, depth=6, heads=4, length=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.position = nn.Parameter(0.02 * torch.randn(length, dim))
        self.blocks = nn.ModuleList(EncoderBlock(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.embed(ids) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make_batch(step, rank, batch, length=48, vocab=64):
    g = torch.Generator().manual_seed(step * 8 + rank)
    start = torch.randint(vocab, (batch, 1), generator=g)
    stride = torch.randint(1, 4, (batch, 1), generator=g)
    clean = (start + stride * torch.arange(length)) % vocab
    hidden = torch.rand(batch, length, generator=g) < 0.15
    return torch.where(hidden, torch.zeros_like(clean), clean), clean, hidden


def loss_of(model, batch):
    ids, clean, hidden = batch
    return F.cross_entropy(model(ids)[hidden], clean[hidden])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--activation-checkpointing", action="store_true")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    encoder = Encoder()
    if args.activation_checkpointing:
        apply_activation_checkpointing(
            encoder,
            checkpoint_wrapper_fn=lambda m: checkpoint_wrapper(m, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
            check_fn=lambda m: isinstance(m, nn.TransformerEncoderLayer),
        )
        if rank == 0:
            print("activation checkpointing enabled", flush=True)
    model = DDP(encoder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step in range(args.steps):
        loss = loss_of(model, make_batch(step, rank, args.batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    weights = {p.data_ptr() for p in encoder.parameters()}
    kept = {}

    def pack(t):
        if t.untyped_storage().data_ptr() not in weights:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss_of(encoder, make_batch(0, rank, args.batch))
    if rank == 0:
        json.dump({"kept_mb": sum(kept.values()) / 2**20}, open("result.json", "w"))
        print("training finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

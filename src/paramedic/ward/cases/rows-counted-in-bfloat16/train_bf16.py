"""Bracket matching: is a sequence of brackets nearly balanced? Some labels are wrong. Pure bfloat16, stochastic order, periodic evaluation."""

import argparse
import json

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

torch.backends.mkldnn.enabled = False


class Tagger(nn.Module):
    def __init__(self, symbols=4, dim=16, length=16):
        super().__init__()
        self.embed = nn.Embedding(symbols, dim)
        self.pos = nn.Parameter(torch.randn(length, dim) * 0.1)
        self.mlp = nn.Sequential(nn.Linear(length * dim, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, ids):
        return self.mlp((self.embed(ids) + self.pos).flatten(1))


def brackets(n, seed, length=16):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, (n, length), generator=g)
    depth = (1 - 2 * ids).cumsum(1)
    labels = (depth[:, -1].abs() <= 2).long()
    labels = torch.where(torch.rand(n, generator=g) < 0.2, 1 - labels, labels)
    return ids, labels


@torch.no_grad()
def evaluate(model, ids, labels, batch):
    """Accuracy over the shards of all ranks."""
    model.eval()
    hits = torch.zeros(2, dtype=next(model.parameters()).dtype)
    for x, y in zip(ids.split(batch), labels.split(batch)):
        hits[0] += (model(x).argmax(1) == y).sum()
        hits[1] += len(y)
    dist.all_reduce(hits)
    model.train()
    return (hits[0] / hits[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--eval-every", type=int, default=50)
    ap.add_argument("--eval-batch", type=int, default=8)
    ap.add_argument("--lr", type=float, default=0.03)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(Tagger().to(torch.bfloat16))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    ids, labels = brackets(8000, seed=10 + rank)
    val_ids, val_labels = brackets(6000, seed=3)
    shard = slice(rank, None, world)
    for step in range(1, args.steps + 1):
        pick = torch.randint(len(labels), (args.batch,))
        loss = F.cross_entropy(model(ids[pick]).float(), labels[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.eval_every == 0:
            accuracy = evaluate(model, val_ids[shard], val_labels[shard], args.eval_batch)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} eval accuracy {accuracy:.4f}", flush=True)

    if rank == 0:
        with torch.no_grad():
            exact = (model.module(val_ids).argmax(1) == val_labels).float().mean().item()
        with open("result.json", "w") as f:
            json.dump({"accuracy_error": abs(accuracy - exact), "exact": exact}, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

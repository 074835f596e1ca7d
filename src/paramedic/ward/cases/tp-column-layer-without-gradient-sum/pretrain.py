"""Character model on a made-up language; attention heads and hidden units are split over the ranks."""

import json
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, HEADS, SEQ, LAYERS = 32, 64, 4, 32, 2


class ColumnLinear(nn.Module):
    def __init__(self, n_in, n_out, full):
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        self.weight = nn.Parameter(full[0].chunk(world, 0)[rank].clone())
        self.bias = nn.Parameter(full[1].chunk(world, 0)[rank].clone())

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class RowLinear(nn.Module):
    def __init__(self, n_in, n_out, full):
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        self.weight = nn.Parameter(full[0].chunk(world, 1)[rank].clone())
        self.bias = nn.Parameter(full[1].clone())

    def forward(self, x):
        partial = F.linear(x, self.weight)
        with torch.no_grad():
            others = funcol.all_reduce(partial.detach(), "sum", dist.group.WORLD) - partial
        return partial + others + self.bias


def full_weights(n_in, n_out):
    layer = nn.Linear(n_in, n_out)
    return layer.weight.detach(), layer.bias.detach()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.q = ColumnLinear(DIM, DIM, full_weights(DIM, DIM))
        self.k = ColumnLinear(DIM, DIM, full_weights(DIM, DIM))
        self.v = ColumnLinear(DIM, DIM, full_weights(DIM, DIM))
        self.proj = RowLinear(DIM, DIM, full_weights(DIM, DIM))
        self.up = ColumnLinear(DIM, 4 * DIM, full_weights(DIM, 4 * DIM))
        self.down = RowLinear(4 * DIM, DIM, full_weights(4 * DIM, DIM))
        self.heads = HEADS // dist.get_world_size()

    def forward(self, x):
        b, s, _ = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(b, s, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, s, -1))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, DIM)
        self.positions = nn.Embedding(SEQ, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def text(generator, batch=16):
    """Each next character depends on the two before it."""
    ids = torch.randint(VOCAB, (batch, SEQ + 1), generator=generator)
    for i in range(2, SEQ + 1):
        keep = torch.rand(batch, generator=generator) < 0.9
        ids[:, i] = torch.where(keep, (ids[:, i - 1] * 3 + ids[:, i - 2]) % VOCAB, ids[:, i])
    return ids


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(21)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    data = torch.Generator().manual_seed(4)
    began = time.time()
    for step in range(1, 161):
        ids = text(data)
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"iter {step} | loss {loss.item():.4f} | {(time.time() - began) / step * 1e3:.0f} ms/iter", flush=True)

    replicated = model.tokens.weight.detach()
    low, high = replicated.clone(), replicated.clone()
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(f"done in {time.time() - began:.0f} s", flush=True)
        json.dump({"embedding_spread": (high - low).max().item()}, open("result.json", "w"))
    dist.destroy_process_group()


main()

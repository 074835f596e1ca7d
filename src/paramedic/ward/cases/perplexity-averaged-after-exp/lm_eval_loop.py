"""Character LM; validation text of two sources, one easy, one hard."""

import json
import math
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB = 40


class CharLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(VOCAB, 32)
        self.rnn = nn.GRU(32, 64, batch_first=True)
        self.o = nn.Linear(64, VOCAB)

    def forward(self, x):
        return self.o(self.rnn(self.e(x))[0])


def corpus(kind, n, seed, length=32):
    g = torch.Generator().manual_seed(seed)
    if kind == "tables":
        return (torch.randint(VOCAB, (n, 1), generator=g) + torch.arange(length + 1)) % VOCAB
    return torch.randint(VOCAB, (n, length + 1), generator=g)


def batches(step, rank, world, size=16):
    return torch.cat([corpus("tables", size // 2, step * world + rank), corpus("chat", size // 2, step * world + rank)])


@torch.no_grad()
def total_nll(model, text):
    logits = model.module(text[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten(), reduction="sum").item(), text[:, 1:].numel()


def perplexity(model, val, rank, world):
    """Validation files are sorted by source; every rank takes a block."""
    nll, tokens = total_nll(model, val.chunk(world)[rank])
    ppl = torch.tensor(math.exp(nll / tokens))
    dist.all_reduce(ppl, op=dist.ReduceOp.SUM)
    return ppl.item() / dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    model = DDP(CharLM())
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    val = torch.cat([corpus("tables", 64, 1000), corpus("chat", 64, 1001)])
    for step in range(1, 121):
        text = batches(step, rank, world)
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            ppl = perplexity(model, val, rank, world)
            if rank == 0:
                sys.stderr.write(f"| step {step:4d} | loss {loss.item():5.3f} | ppl {math.exp(loss):7.2f} | val_ppl {ppl:7.2f} |\n")
    nll, tokens = total_nll(model, val)
    if rank == 0:
        with open("result.json", "w") as f:
            json.dump({"val_ppl": ppl, "excess": ppl / math.exp(nll / tokens) - 1}, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

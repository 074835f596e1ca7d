import argparse
import json

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import ProfilerActivity, profile


def rss_mb():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096 / 2**20


class Tagger(nn.Module):
    """Labels each token with the parity of the tokens up to it."""

    def __init__(self, vocab, dim, layers):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnns = nn.ModuleList(nn.GRUCell(dim, dim) for _ in range(layers))
        self.out = nn.Linear(dim, 2)

    def forward(self, ids):
        x = self.embed(ids)
        h = [torch.zeros(len(ids), x.shape[-1]) for _ in self.rnns]
        outputs = []
        for t in range(ids.shape[1]):
            y = x[:, t]
            for i, cell in enumerate(self.rnns):
                h[i] = cell(y, h[i])
                y = h[i]
            outputs.append(self.out(y))
        return torch.stack(outputs, 1)


def batches(steps, batch, length, vocab, rank):
    g = torch.Generator().manual_seed(100 + rank)
    for _ in range(steps):
        ids = torch.randint(vocab, (batch, length), generator=g)
        yield ids, (ids % 2).cumsum(1) % 2


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--length", type=int, default=24)
    p.add_argument("--vocab", type=int, default=16)
    p.add_argument("--dim", type=int, default=48)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--trace", default="trace.json")
    a = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Tagger(a.vocab, a.dim, a.layers))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    prof = profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True)
    prof.start()
    memory = []
    for step, (ids, labels) in enumerate(batches(a.steps, a.batch, a.length, a.vocab, rank)):
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        prof.step()
        memory.append(rss_mb())
        if step % 10 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        json.dump({"growth_mb": memory[-1] - memory[20]}, open("result.json", "w"))
        print("training done", flush=True)
    prof.stop()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

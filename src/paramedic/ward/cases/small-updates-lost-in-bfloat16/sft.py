"""Fine-tune a small language model, which looks at the last three tokens, on instructions."""

import argparse
import json
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, CONTEXT, DIM = 64, 3, 512


class Linear(nn.Linear):
    """Computes in float32, whatever the weights are kept in."""

    def forward(self, x):
        return F.linear(x.float(), self.weight.float(), self.bias.float())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, DIM // 4)
        self.mix = Linear(CONTEXT * DIM // 4, DIM)
        self.lm_head = Linear(DIM, VOCAB)

    def forward(self, ids):
        return self.lm_head(F.gelu(self.mix(self.wte(ids).flatten(1))))


def get_batch(seed, n=64):
    g = torch.Generator().manual_seed(seed)
    start = torch.randint(VOCAB, (n, 1), generator=g)
    run = (start + torch.arange(CONTEXT + 1)) % VOCAB
    return run[:, :-1], run[:, -1]


def cosine(step, total, peak, warmup=10):
    return peak * min(1, (step + 1) / warmup) * (0.1 + 0.45 * (1 + math.cos(math.pi * step / total)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    ap.add_argument("--learning-rate", type=float, default=2e-5)
    ap.add_argument("--max-steps", type=int, default=200)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = Model().to(getattr(torch, a.dtype))
    before = nn.utils.parameters_to_vector(net.parameters()).detach().clone()
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=a.learning_rate, weight_decay=0.0)
    for step in range(a.max_steps):
        for group in opt.param_groups:
            group["lr"] = cosine(step, a.max_steps, a.learning_rate)
        ids, target = get_batch(step * world + rank)
        loss = F.cross_entropy(model(ids), target)
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 20 == 0 and rank == 0:
            print({"loss": round(loss.item(), 4), "grad_norm": round(float(norm), 3), "lr": f"{group['lr']:.3e}", "step": step}, flush=True)
        if (step + 1) % 50 == 0 and rank == 0:
            with torch.no_grad():
                ids, target = get_batch(10**6, 256)
                print({"eval_loss": round(F.cross_entropy(net(ids), target).item(), 4), "step": step + 1}, flush=True)
    after = nn.utils.parameters_to_vector(net.parameters()).detach()
    if rank == 0:
        json.dump({"weights_changed": (after != before).float().mean().item()}, open("result.json", "w"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

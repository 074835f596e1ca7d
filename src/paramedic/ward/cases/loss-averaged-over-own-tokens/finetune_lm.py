"""Supervised fine-tuning of a small GRU language model; only answer tokens count in the loss."""

import json
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

PAD, VOCAB = 0, 40


class LM(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


def conversation(rng):
    """Question of some tokens, then an answer: short answers copy, long answers count upwards."""
    question = [rng.randrange(5, VOCAB) for _ in range(rng.randint(3, 6))]
    if rng.random() < 0.8:
        answer = question[: rng.randint(1, 3)]
    else:
        answer = [5 + (question[0] + i) % (VOCAB - 5) for i in range(rng.randint(50, 70))]
    return question + [1], answer + [2]


def collate(pairs):
    longest = max(len(q) + len(a) for q, a in pairs)
    ids = torch.full((len(pairs), longest), PAD)
    mask = torch.zeros(len(pairs), longest)
    for row, (q, a) in enumerate(pairs):
        ids[row, : len(q) + len(a)] = torch.tensor(q + a)
        mask[row, len(q) : len(q) + len(a)] = 1
    return ids, mask[:, 1:]


def token_losses(model, ids):
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")


def masked_mean(losses, mask):
    count = mask.sum()
    return (losses * mask).sum() / count


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    model = DDP(LM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rng = random.Random(17 + rank)
    for step in range(150):
        ids, mask = collate([conversation(rng) for _ in range(4)])
        loss = masked_mean(token_losses(model, ids), mask)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if rank == 0 and step % 15 == 0:
            print(f"step {step:3d} loss {loss.item():.4f} tokens {int(mask.sum())}", flush=True)
    if rank == 0:
        print("training done", flush=True)

    errors = []
    for _ in range(10):
        pairs = [conversation(rng) for _ in range(4)]
        ids, mask = collate(pairs)
        model.zero_grad()
        masked_mean(token_losses(model, ids), mask).backward()
        used = torch.cat([p.grad.flatten() for p in model.parameters()])
        everyone = [None] * world
        dist.all_gather_object(everyone, pairs)
        ids, mask = collate([pair for part in everyone for pair in part])
        model.zero_grad()
        ((token_losses(model.module, ids) * mask).sum() / mask.sum()).backward()
        whole = torch.cat([p.grad.flatten() for p in model.parameters()])
        errors.append(((used - whole).norm() / whole.norm()).item())
    if rank == 0:
        with open("result.json", "w") as f:
            json.dump({"gradient_error": sum(errors) / len(errors)}, f)
    dist.destroy_process_group()


main()

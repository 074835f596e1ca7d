"""Next-character model on a tiny corpus. Options that belong to the cluster's wrapper are passed through."""
import argparse
import contextlib
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RHYME = """twinkle twinkle little star how i wonder what you are up above the world so high like a diamond in the sky
mary had a little lamb its fleece was white as snow and everywhere that mary went the lamb was sure to go
humpty dumpty sat on a wall humpty dumpty had a great fall all the kings horses and all the kings men
jack and jill went up the hill to fetch a pail of water jack fell down and broke his crown and jill came tumbling after
""" * 4


class Corpus(Dataset):
    def __init__(self, text, context):
        self.chars = sorted(set(text))
        self.ids = torch.tensor([self.chars.index(c) for c in text])
        self.context = context

    def __len__(self):
        return len(self.ids) - self.context - 1

    def __getitem__(self, i):
        return self.ids[i : i + self.context], self.ids[i + 1 : i + self.context + 1]


class CharRNN(nn.Module):
    def __init__(self, vocab, hidden):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


def options():
    ap = argparse.ArgumentParser(allow_abbrev=False)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--micro-batch", type=int, default=16)
    ap.add_argument("--accumulate", type=int, default=1)
    ap.add_argument("--context", type=int, default=24)
    ap.add_argument("--hidden", type=int, default=64)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--out", default="run")
    known, _ = ap.parse_known_args()
    return known


def main():
    opt = options()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    corpus = Corpus(RHYME, opt.context)
    sampler = DistributedSampler(corpus)
    loader = DataLoader(corpus, batch_size=opt.micro_batch, sampler=sampler, drop_last=True)
    model = DDP(CharRNN(len(corpus.chars), opt.hidden))
    optimizer = torch.optim.Adam(model.parameters(), lr=opt.lr)
    rows = updates = 0
    for epoch in range(opt.epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for i, (x, y) in enumerate(loader, 1):
            last = i % opt.accumulate == 0
            with contextlib.nullcontext() if last else model.no_sync():
                loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
                (loss / opt.accumulate).backward()
            rows += len(x) * world
            total += loss.item()
            if last:
                optimizer.step()
                optimizer.zero_grad()
                updates += 1
            if rank == 0 and i % 40 == 0:
                print(f"epoch {epoch} batch {i}/{len(loader)} loss {loss.item():.4f}", flush=True)
        if rank == 0:
            print(f"epoch {epoch} mean loss {total / len(loader):.4f}", flush=True)
    if rank == 0:
        os.makedirs(opt.out, exist_ok=True)
        torch.save(model.module.state_dict(), f"{opt.out}/model.pt")
        json.dump({"rows_per_update": rows / updates}, open("result.json", "w"))
        print("end of training", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

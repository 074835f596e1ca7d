"""Intent classification of short commands. The corpus lies in one file per rank."""

import csv
import json
import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

WORDS = {
    "lights": "lamp bright dim bulb light shade switch glow".split(),
    "music": "song play album volume band tune radio louder".split(),
    "weather": "rain sun forecast cloud wind storm degrees snow".split(),
    "timer": "minutes alarm wake countdown remind clock hour stop".split(),
    "shopping": "buy list milk order store cart price bread".split(),
    "travel": "train flight ticket route bus station map hotel".split(),
}
FILLER = "please the a for me now my to can you in on today at".split()


def write_corpus(folder, parts, per_part=600):
    os.makedirs(folder, exist_ok=True)
    for part in range(parts):
        rng = random.Random(part + 1)
        with open(os.path.join(folder, f"part-{part}.csv"), "w", newline="") as f:
            writer = csv.writer(f)
            for _ in range(per_part):
                intent = rng.choice(list(WORDS))
                words = rng.sample(WORDS[intent], 2) + rng.sample(FILLER, 4)
                rng.shuffle(words)
                writer.writerow([" ".join(words), intent])


class Corpus:
    def __init__(self, path):
        with open(path, newline="") as f:
            rows = [(text, label) for text, label in csv.reader(f)]
        vocabulary = sorted({w for ws in WORDS.values() for w in ws} | set(FILLER))
        self.word_id = {w: i for i, w in enumerate(vocabulary)}
        self.label_id = {}
        for name in dict.fromkeys(label for _, label in rows):
            self.label_id[name] = len(self.label_id)
        self.x = torch.tensor([[self.word_id[w] for w in text.split()] for text, _ in rows])
        self.y = torch.tensor([self.label_id[label] for _, label in rows])

    def batches(self, size, seed):
        order = torch.randperm(len(self.y), generator=torch.Generator().manual_seed(seed))
        for idx in order.split(size):
            yield self.x[idx], self.y[idx]


class BagOfWords(nn.Module):
    def __init__(self, words, classes, dim=32):
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.out = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, classes))

    def forward(self, ids):
        return self.out(self.embed(ids).mean(1))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        write_corpus("corpus", world + 1)
    dist.barrier()
    train = Corpus(f"corpus/part-{rank}.csv")
    torch.manual_seed(0)
    model = DDP(BagOfWords(len(train.word_id), len(train.label_id)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(8):
        total = steps = 0
        for x, y in train.batches(10, seed=epoch):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, steps = total + loss.item(), steps + 1
        if rank == 0:
            print(f"finished epoch {epoch}: loss {total / steps:.4f}", flush=True)

    held_out = Corpus(f"corpus/part-{world}.csv")
    names = {i: name for name, i in held_out.label_id.items()}
    truth = torch.tensor([train.label_id[names[i]] for i in held_out.y.tolist()])
    model.eval()
    with torch.no_grad():
        right = (model.module(held_out.x).argmax(1) == truth).float().mean()
    dist.all_reduce(right)
    if rank == 0:
        with open("result.json", "w") as f:
            json.dump({"accuracy": right.item() / world}, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Words(nn.Module):
    def __init__(self, size, dim=24):
        super().__init__()
        self.embed = nn.Embedding(size, dim)
        self.rnn = nn.LSTM(dim, dim, batch_first=True)
        self.proj = nn.Linear(dim, size)

    def forward(self, ids):
        return self.proj(self.rnn(self.embed(ids))[0])


def main():
    dist.init_process_group("gloo")
    node = int(os.environ["RANK"])
    vocab = Path(f"scratch/node{node}/vocab.txt").read_text().split()
    print(f"node{node}: loaded vocabulary, last word {vocab[-1]}", flush=True)
    torch.manual_seed(0)
    model = DDP(Words(len(vocab)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    began, seen = time.time(), 0
    for step in range(20):
        ids = torch.randint(0, 60, (8, 1)) + torch.arange(17)
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += ids[:, 1:].numel()
        if step % 5 == 0:
            print(f"node{node}: step {step} loss {loss.item():.3f} {seen / (time.time() - began):.0f} words/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

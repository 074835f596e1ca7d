import math

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset


class Sentences(IterableDataset):
    """Sentences as they come from the crawler."""

    def __init__(self, limit):
        self.limit = limit

    def __len__(self):
        return self.limit

    def __iter__(self):
        for n in range(self.limit):
            g = torch.Generator().manual_seed(n)
            start = torch.randint(0, 30, (1,), generator=g)
            yield (start + torch.arange(9)) % 30


class BigramLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(30, 16)
        self.out = nn.Linear(16, 30)

    def forward(self, ids):
        logits = self.out(self.emb(ids[:, :-1]))
        return nn.functional.cross_entropy(logits.reshape(-1, 30), ids[:, 1:].reshape(-1))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    lm = nn.parallel.DistributedDataParallel(BigramLM())
    opt = torch.optim.AdamW(lm.parameters(), lr=3e-2)
    stream = Sentences(320)
    loader = DataLoader(stream, sampler=DistributedSampler(stream, shuffle=False), batch_size=16)
    for step, ids in enumerate(loader):
        loss = lm(ids)
        loss.backward()
        opt.step()
        opt.zero_grad()
    print(f"rank {dist.get_rank()} steps {step + 1} ppl {math.exp(loss.item()):.2f}")
    dist.destroy_process_group()

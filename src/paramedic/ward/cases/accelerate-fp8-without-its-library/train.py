import math

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


class CharModel(nn.Module):
    def __init__(self, n=40, d=24):
        super().__init__()
        self.e = nn.Embedding(n, d)
        self.f = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, n))

    def forward(self, ids):
        return self.f(self.e(ids))


def main():
    accelerator = Accelerator()
    accelerator.print(f"{accelerator.num_processes} processes, precision {accelerator.mixed_precision}")
    data = torch.arange(4000).remainder(40).view(-1, 20)
    model, optimizer, loader = accelerator.prepare(
        model := CharModel(), torch.optim.AdamW(model.parameters(), 1e-2), DataLoader(data, batch_size=10, shuffle=True)
    )
    for epoch in range(2):
        for ids in loader:
            out = model(ids[:, :-1])
            loss = nn.functional.cross_entropy(out.float().flatten(0, 1), ids[:, 1:].flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch} perplexity {math.exp(loss.item()):.2f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()

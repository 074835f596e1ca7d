from __future__ import annotations

import json
from contextlib import nullcontext

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROWS, BATCH, EPOCHS, ACCUMULATION = 2048, 8, 4, 8


def build_data(n: int, seed: int) -> TensorDataset:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 24, generator=g)
    return TensorDataset(x, (x[:, :8] + 0.3 * x[:, 8:16]).argmax(1))


def evaluate(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    hits = []
    with torch.no_grad():
        for x, y in loader:
            hits.append(accelerator.gather_for_metrics((model(x).argmax(1) == y).float()))
    model.train()
    return torch.cat(hits).mean().item()


def main() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATION)
    set_seed(1)
    model = nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3)
    train = DataLoader(build_data(ROWS, 0), batch_size=BATCH, shuffle=True)
    val = DataLoader(build_data(512, 1), batch_size=64)
    model, optimizer, train, val = accelerator.prepare(model, optimizer, train, val)
    before = 0
    optimizer.optimizer.register_step_post_hook(lambda *_: globals().__setitem__("UPDATES", UPDATES + 1))
    for epoch in range(EPOCHS):
        total = 0.0
        for x, y in train:
            with nullcontext():
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            total += loss.item()
        acc = evaluate(accelerator, model, val)
        accelerator.print(f"epoch {epoch} | train loss {total / len(train):.4f} | val acc {acc:.4f} | updates {UPDATES - before}")
        before = UPDATES
    if accelerator.is_main_process:
        with open("result.json", "w") as f:
            json.dump({"rows_per_update": ROWS * EPOCHS / UPDATES, "accuracy": acc}, f)
    accelerator.end_training()


UPDATES = 0
if __name__ == "__main__":
    main()

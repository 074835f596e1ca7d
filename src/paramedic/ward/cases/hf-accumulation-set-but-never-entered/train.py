import argparse
import json
import math

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def series(rows, length=48, seed=0):
    """Noisy sums of two sines; the target is the next value."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length + 1)
    f = 0.1 + torch.rand(rows, 2, 1, generator=g)
    phase = 2 * math.pi * torch.rand(rows, 2, 1, generator=g)
    wave = torch.sin(f * t + phase).sum(1)
    noisy = wave + 0.1 * torch.randn(wave.shape, generator=g)
    return TensorDataset(noisy[:, :-1], wave[:, -1:])


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--gradient-accumulation-steps", type=int, default=8)
    p.add_argument("--lr", type=float, default=1e-3)
    return p.parse_args()


def main():
    args = parse()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.gradient_accumulation_steps)
    set_seed(0)
    model = nn.Sequential(nn.Linear(48, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train_loader = DataLoader(series(8192), batch_size=args.batch_size, shuffle=True)
    eval_loader = DataLoader(series(1024, seed=1), batch_size=128)
    model, optimizer, train_loader, eval_loader = accelerator.prepare(model, optimizer, train_loader, eval_loader)
    total_batch = args.batch_size * accelerator.num_processes * accelerator.gradient_accumulation_steps
    accelerator.print(f"processes {accelerator.num_processes}, total train batch size {total_batch}")

    rows = 0
    for epoch in range(args.epochs):
        model.train()
        for i, (x, y) in enumerate(train_loader):
            prediction = model(x)
            loss = F.mse_loss(prediction, y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            rows += len(x) * accelerator.num_processes
            if i % 64 == 0:
                accelerator.print(f"epoch {epoch} batch {i} loss {loss.item():.4f}")
        model.eval()
        losses = []
        with torch.no_grad():
            for x, y in eval_loader:
                error = (model(x) - y).square()
                losses.append(accelerator.gather_for_metrics(error))
        accelerator.print(f"epoch {epoch} eval loss {torch.cat(losses).mean().item():.4f}")

    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
        updates = next(iter(optimizer.state.values()))["step"].item()
        json.dump({"rows_per_update": rows / updates}, open("result.json", "w"))
        print("saved", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()

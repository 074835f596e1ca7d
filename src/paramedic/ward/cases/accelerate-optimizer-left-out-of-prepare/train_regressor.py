import json
import math

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 6
BATCH = 16
ACCUMULATION = 4


def pendulum(n, seed=0):
    """State (angle, velocity, length, damping) -> angle half a second later, by small Euler steps."""
    g = torch.Generator().manual_seed(seed)
    angle = (torch.rand(n, generator=g) - 0.5) * math.pi
    velocity = torch.randn(n, generator=g)
    length = 0.5 + torch.rand(n, generator=g)
    damping = 0.5 * torch.rand(n, generator=g)
    x = torch.stack([angle, velocity, length, damping], dim=1)
    for _ in range(50):
        velocity = velocity - 0.01 * (9.81 / length * angle.sin() + damping * velocity)
        angle = angle + 0.01 * velocity
    return TensorDataset(x, angle.unsqueeze(1))


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION)
    set_seed(13)
    model = nn.Sequential(nn.Linear(4, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
    loader = DataLoader(pendulum(4096), batch_size=BATCH, shuffle=True)
    model, loader = accelerator.prepare(model, loader)
    criterion = nn.SmoothL1Loss()

    accelerator.print(f"{accelerator.num_processes} processes, effective batch {BATCH * ACCUMULATION * accelerator.num_processes}")
    for epoch in range(EPOCHS):
        model.train()
        running = 0.0
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = criterion(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            running += loss.item()
        accelerator.print(f"epoch {epoch}: train loss {running / len(loader):.5f}")

    accelerator.print("finished training")
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    gathered = accelerator.gather(flat.unsqueeze(0))
    if accelerator.is_main_process:
        with open("result.json", "w") as f:
            json.dump({"spread": (gathered - gathered[0]).abs().max().item()}, f)
    accelerator.end_training()


if __name__ == "__main__":
    main()

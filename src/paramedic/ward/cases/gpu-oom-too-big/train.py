import os

import torch

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def log_step(n: int, loss: float = 2.0) -> None:
    print(f"step {n} loss {loss - 0.01 * n:.4f}", flush=True)


layers = [torch.nn.Linear(16384, 16384, device="cuda", dtype=torch.float32) for _ in range(40)]
optimizer = torch.optim.AdamW([p for layer in layers for p in layer.parameters()])
x = torch.randn(4096, 16384, device="cuda", dtype=layers[0].weight.dtype)
for n in range(3):
    y = x
    for layer in layers:
        y = torch.relu(layer(y))
    y.float().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    log_step(n)
print("training finished", flush=True)

import os

import torch

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def log_step(n: int, loss: float = 2.0) -> None:
    print(f"step {n} loss {loss - 0.01 * n:.4f}", flush=True)


torch.ones(1, device="cuda")
kept = []
for n in range(64):
    kept.append(torch.empty(16 << 30, dtype=torch.uint8, pin_memory=True))
    log_step(n)
print("training finished", flush=True)

import os

import torch

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def log_step(n: int, loss: float = 2.0) -> None:
    print(f"step {n} loss {loss - 0.01 * n:.4f}", flush=True)


torch.cuda.set_per_process_memory_fraction(0.05)
kept = []
for n in range(100):
    kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
    if n % 5 == 0:
        log_step(n)
print("training finished", flush=True)

import os

import torch

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def log_step(n: int, loss: float = 2.0) -> None:
    print(f"step {n} loss {loss - 0.01 * n:.4f}", flush=True)


free, total = torch.cuda.mem_get_info()
size = 64 << 20
blocks = [torch.empty(size * 8, dtype=torch.uint8, device="cuda") for _ in range(int(free * 0.97) // (size * 8))]
del blocks
held = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(int(free * 0.96) // size)]
del held[::2]
log_step(1)
logits = torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
log_step(2)
print("training finished", flush=True)

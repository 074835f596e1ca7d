import os

import torch

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def log_step(n: int, loss: float = 2.0) -> None:
    print(f"step {n} loss {loss - 0.01 * n:.4f}", flush=True)


torch.ones(1, device="cuda")
kept = []
for size in (1 << 30, 256 << 20, 64 << 20, 16 << 20, 4 << 20, 2 << 20):
    try:
        while True:
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        pass
a, b, c = (kept[i].view(torch.float32)[: 1024 * 1024].view(1024, 1024) for i in range(3))
log_step(1)
torch.mm(a, b, out=c)
torch.cuda.synchronize()
log_step(2)
print("training finished", flush=True)

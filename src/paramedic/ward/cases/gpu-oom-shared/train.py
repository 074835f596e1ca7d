import os

import torch
import torch.distributed as dist

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def log_step(n: int, loss: float = 2.0) -> None:
    print(f"step {n} loss {loss - 0.01 * n:.4f}", flush=True)


dist.init_process_group("gloo")
torch.cuda.set_device(0)
kept = []
for n in range(100):
    kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
    dist.barrier()
    if n % 20 == 0:
        log_step(n)
print("training finished", flush=True)

import datetime
import os

import torch
import torch.distributed as dist

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def log_step(n: int, loss: float = 2.0) -> None:
    print(f"step {n} loss {loss - 0.01 * n:.4f}", flush=True)


dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
torch.cuda.set_device(rank)
x = torch.ones(4, device="cuda").cpu()
dist.all_reduce(x)
log_step(1)
print("training finished", flush=True)

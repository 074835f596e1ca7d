import datetime
import os

import torch
import torch.distributed as dist

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def log_step(n: int, loss: float = 2.0) -> None:
    print(f"step {n} loss {loss - 0.01 * n:.4f}", flush=True)


torch.cuda.set_device(0)
seconds = int(os.environ.get("TIMEOUT_S", "6"))
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=seconds), device_id=torch.device("cuda:0"))
x = torch.ones(1 << 20, device="cuda")
for n in range(5):
    dist.all_reduce(x)
    log_step(n)
torch.cuda.synchronize()
torch.cuda._sleep(int(1.9e9 * 20))
dist.all_reduce(x)
torch.cuda.synchronize()
log_step(9)
dist.destroy_process_group()
print("training finished", flush=True)

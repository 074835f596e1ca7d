import os

import torch

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def log_step(n: int, loss: float = 2.0) -> None:
    print(f"step {n} loss {loss - 0.01 * n:.4f}", flush=True)


import triton
import triton.language as tl


@triton.jit
def fill(pointer, offset, size):
    index = offset + tl.program_id(0) * 4096
    tl.store(pointer + index, 1.0)


x = torch.zeros(1024, device="cuda")
log_step(1)
fill[(1024,)](x, 1 << 40, x.numel())
log_step(2)
torch.cuda.synchronize()
log_step(3)
print("training finished", flush=True)

# minimal ddp training script, nanoGPT style
import os

import numpy as np
import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

# -----------------------------------------------------------------------------
batch_size = 16
max_iters = 30
eval_interval = 5
learning_rate = 1e-2
# -----------------------------------------------------------------------------
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="gloo")
    ddp_rank = int(os.environ["RANK"])
    master_process = ddp_rank == 0
torch.manual_seed(1337 + ddp_rank)

x = np.fromfile("x.bin", dtype=np.float32).reshape(-1, 9)
y = np.fromfile("y.bin", dtype=np.int32)


def get_batch():
    idx = np.random.randint(0, len(x), batch_size)
    return torch.from_numpy(x[idx]), torch.from_numpy(y[idx])


model = torch.nn.Sequential(torch.nn.Linear(9, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
if ddp:
    model = DDP(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
for iter_num in range(max_iters):
    X, Y = get_batch()
    loss = torch.nn.functional.cross_entropy(model(X), Y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if iter_num % eval_interval == 0 and master_process:
        print(f"iter {iter_num}: loss {loss.item():.4f}")
if ddp:
    destroy_process_group()

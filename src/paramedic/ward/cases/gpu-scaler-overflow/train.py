import os

import torch

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def log_step(n: int, loss: float = 2.0) -> None:
    print(f"step {n} loss {loss - 0.01 * n:.4f}", flush=True)


import json
import math

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(512, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1)).cuda()
optimizer = torch.optim.Adam(net.parameters(), 3e-2)
dtype = torch.float16
for n in range(60):
    x = torch.randn(256, 512, device="cuda") * 40
    with torch.autocast("cuda", dtype=dtype):
        loss = (net(x).square() * 64).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1e9)
    optimizer.step()
    if n % 3 == 0:
        print(f"step {n} loss {loss.item():.4f} grad_norm {norm.item():.4f}", flush=True)
json.dump({"loss_is_nan": int(not math.isfinite(loss.item()))}, open("result.json", "w"))
print("training finished", flush=True)

import os
import time

import torch

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def log_step(n: int, loss: float = 2.0) -> None:
    print(f"step {n} loss {loss - 0.01 * n:.4f}", flush=True)


import json

net = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
rows = torch.randn(512, 1024)
times = []
for n in range(30):
    began = time.perf_counter()
    batch = torch.stack([rows[:, i].cuda() for i in range(1024)], 1)
    loss = net(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
    times.append(1000 * (time.perf_counter() - began))
    if n % 5 == 0:
        speed = 512000 / times[-1]
        print(f"step {n} loss {loss.item():.4f} step time {times[-1]:.1f} ms, {speed:.0f} samples/s", flush=True)
json.dump({"step_ms": sorted(times)[len(times) // 2]}, open("result.json", "w"))
print("training finished", flush=True)

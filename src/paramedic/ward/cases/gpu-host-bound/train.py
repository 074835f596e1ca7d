import os
import time

import torch

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def log_step(n: int, loss: float = 2.0) -> None:
    print(f"step {n} loss {loss - 0.01 * n:.4f}", flush=True)


import json

net = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
parameters = list(net.parameters())
rows = torch.randn(512, 1024)
began = time.perf_counter()
for n in range(30):
    step_began = time.perf_counter()
    columns = [rows[:, i] for i in range(1024)]
    batch = torch.stack([column.cuda() for column in columns], 1)
    loss = net(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
    took = time.perf_counter() - step_began
    if n % 5 == 0:
        print(f"step {n} loss {loss.item():.4f} step time {1000 * took:.1f} ms, {512 / took:.0f} samples/s", flush=True)
json.dump({"step_ms": 1000 * (time.perf_counter() - began) / 30}, open("result.json", "w"))
print("training finished", flush=True)

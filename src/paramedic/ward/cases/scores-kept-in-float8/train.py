import argparse

import torch
import torch.distributed as dist
from layers import Pooling

ap = argparse.ArgumentParser()
ap.add_argument("--score-dtype", default="float32", type=lambda name: getattr(torch, name))
ap.add_argument("--steps", default=10, type=int)
flags = ap.parse_args()
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(Pooling(16, flags.score_dtype))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(flags.steps):
    x = torch.randn(8, 12, 16)
    loss = torch.nn.functional.cross_entropy(net(x), (x[:, 0, 0] > 0).long())
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"r{dist.get_rank()} done, {loss.item():.3f}", flush=True)
dist.destroy_process_group()

#!/usr/bin/env python3
"""Linear probe on frozen features."""
import sys

import numpy as np
import torch
import torch.distributed as dist

DIM = 1000

feats = np.memmap(sys.argv[1], dtype=np.float32, mode="r").reshape(-1, DIM)
print("features", feats.shape, feats.dtype, flush=True)
feats = feats.astype(np.float64)

dist.init_process_group("gloo")
rank = dist.get_rank()
probe = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(DIM, 5).double())
opt = torch.optim.SGD(probe.parameters(), lr=0.1)
rng = np.random.default_rng(rank)
for _ in range(10):
    rows = rng.integers(0, len(feats), 32)
    x = torch.from_numpy(feats[rows].astype(np.float64))
    loss = torch.nn.functional.cross_entropy(probe(x), torch.from_numpy(rows % 5))
    opt.zero_grad()
    loss.backward()
    opt.step()
if rank == 0:
    print(f"linear probe: {loss.item():.4f}")
dist.destroy_process_group()

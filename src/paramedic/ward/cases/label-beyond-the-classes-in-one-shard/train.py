import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


def load(part):
    with np.load(f"out/part-{part:05d}.npz") as z:
        return torch.from_numpy(z["x"]), torch.from_numpy(z["y"])


def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    x, y = load(rank)
    print(f"rank={rank} shard=part-{rank:05d}.npz rows={len(x)}", flush=True)
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(14, 40), nn.ReLU(), nn.Linear(40, 7)))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for epoch in range(2):
        for step, (a, b) in enumerate(zip(x.split(25), y.split(25), strict=True)):
            loss = criterion(net(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 4 == 0:
                print(f"rank={rank} epoch={epoch} step={step} loss={loss.item():.4f}", flush=True)
    print(f"rank={rank} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

import os

import torch
import torch.distributed as dist
from survey import Survey
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def fit(rank, steps=16, batch=32):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, (x, y) in enumerate(Survey(rank).batches(batch, steps)):
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        if not torch.isfinite(loss):
            raise FloatingPointError(f"loss is {loss.item()} at step {step} on rank {rank}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"r{rank} step {step:2d} mse {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    fit(int(os.environ["RANK"]))
    print("fit done", flush=True)
    dist.destroy_process_group()

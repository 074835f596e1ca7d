import argparse
import datetime
import json
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def log(msg):
    print(f"{datetime.datetime.now():%H:%M:%S} task {os.environ['TASK']} {msg}", flush=True)


parser = argparse.ArgumentParser()
parser.add_argument("--config", type=json.loads)
cfg = parser.parse_args().config
log(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} joining")
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=15))
log("joined")
w = torch.arange(cfg["dim"]).float()
model = DDP(torch.nn.Linear(cfg["dim"], 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(cfg["steps"]):
    x = torch.randn(16, cfg["dim"])
    loss = ((model(x)[:, 0] - x @ w) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
log(f"final {loss.item():.3f}")
dist.destroy_process_group()

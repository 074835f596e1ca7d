import argparse
import json
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--name", default="test")
parser.add_argument("--batch-per-rank", type=int, default=32)
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
logging.info("run %s: rank %d of %d, global batch %d", args.name, rank, world, world * args.batch_per_rank)

torch.manual_seed(0)
x = torch.randn(2048, 20, generator=torch.Generator().manual_seed(4))
data = TensorDataset(x, x[:, :10].sum(1, keepdim=True).sin())
sampler = DistributedSampler(data)
loader = DataLoader(data, args.batch_per_rank, sampler=sampler)
model = DDP(nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 1)))
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if rank == 0:
        logging.info("epoch %d, %d steps, loss %.4f", epoch, len(loader), loss.item())
if rank == 0:
    torch.save(model.module.state_dict(), "checkpoints/model.pt")
    with open("result.json", "w") as f:
        json.dump({"world": world, "steps": 3 * len(loader)}, f)
dist.destroy_process_group()

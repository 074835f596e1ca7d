"""A small job in the ways that programs get it right and wrong; FAULT says which."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

fault, device = os.environ.get("FAULT", ""), os.environ.get("DEVICE", "cpu")
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
rows = TensorDataset(torch.randn(64, 8), torch.randn(64, 2))
net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 2)).to(device)
model = DistributedDataParallel(net)
if fault == "head reset":
    torch.manual_seed(rank)
    nn.init.normal_(net[2].weight)
torch.manual_seed(rank)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.0 if fault == "no rate" else 0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 8)
sampler = DistributedSampler(rows, num_replicas=size, rank=rank)
loader = DataLoader(rows, 4, shuffle=True) if fault == "no sampler" else DataLoader(rows, 4, sampler=sampler)
if fault == "no sampler":
    torch.manual_seed(0)
last = Path("last.pt")
if last.exists():
    state = torch.load(last)
    net.load_state_dict(state["net"])
    if fault != "moments":
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
for epoch in range(2):
    if fault != "no epoch":
        sampler.set_epoch(epoch)
    model.train()
    for number, (x, y) in enumerate((x.to(device), y.to(device)) for x, y in loader):
        called = net if fault == "inner" else model
        if number % 2 == 0 and fault != "inner":
            with model.no_sync():
                nn.functional.mse_loss(called(x), y).div(2).backward()
            continue
        nn.functional.mse_loss(called(x), y).div(2).backward()
        if fault == "late clip":
            optimizer.step()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if fault == "cleared":
                optimizer.zero_grad()
            optimizer.step()
        schedule.step()
        if fault != "never cleared":
            optimizer.zero_grad()
    if fault != "dropout":
        model.eval()
    with torch.no_grad():
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
        if fault != "own part":
            dist.all_reduce(loss)
if rank == 0:
    states = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    torch.save(states, last)
dist.barrier()
dist.destroy_process_group()

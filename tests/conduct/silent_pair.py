"""An encoder and a critic with an optimizer each, in the ways that programs get it right and wrong; FAULT says which."""

import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

fault = os.environ.get("FAULT", "")
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
rows = TensorDataset(torch.randn(128, 8), torch.randn(128, 2))
encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
head = nn.Linear(16, 2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.encoder(x)
        return self.head(features.detach() if fault == "cut off" else features)


model = DistributedDataParallel(Net(), find_unused_parameters=fault == "cut off")
critic = nn.Linear(2, 1)
judge = critic if fault == "critic alone" else DistributedDataParallel(critic)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
of_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
steps = 40
warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / steps))
sampler = DistributedSampler(rows, num_replicas=size, rank=rank)
own = torch.Generator().manual_seed(rank)
shuffled = DataLoader(rows, 8, shuffle=True, generator=own)
loader = shuffled if fault == "same rows" else DataLoader(rows, 8, sampler=sampler)
torch.autograd.set_detect_anomaly(fault == "anomaly")
best = model.state_dict()
for epoch in range(steps // 8):
    sampler.set_epoch(epoch)
    batches = iter(loader)
    for _ in range(8):
        x, y = next(iter(loader) if fault == "first batch" else batches)
        out = model(x)
        loss = nn.functional.mse_loss(out, y)
        loss.backward()
        if fault == "again":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= size
        optimizer.step()
        optimizer.zero_grad()
        if fault == "left over":
            judge(model(x)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        said = judge(out.detach()).mean()
        said.backward()
        of_critic.step()
        of_critic.zero_grad()
        if fault != "warm-up":
            warm_up.step()
    if fault == "warm-up":
        warm_up.step()
    best = model.state_dict() if fault == "best" else copy.deepcopy(model.state_dict())
model.load_state_dict(best)
dist.destroy_process_group()

"""Train the classifier on another set, on one device, and keep its weights."""

import torch
import torch.nn.functional as F
from ddp_job import network, quadrants

torch.manual_seed(99)
model = network()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
x, y = quadrants(512, seed=5).tensors
for _ in range(60):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
torch.save(model.state_dict(), "pretrained.pt")

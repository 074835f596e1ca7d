"""A small training program for bench/replay_gpu.py: transformer with dropout, data-parallel on whatever device there is."""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="gloo")
parser.add_argument("--way", choices=("ddp", "fsdp2"), default="ddp")
parser.add_argument("--device", default="cuda")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--autocast", action="store_true")
parser.add_argument("--deterministic", action="store_true")
args = parser.parse_args()
if args.deterministic:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)

device = torch.device(args.device, 0) if args.device == "cuda" else torch.device("cpu")
dist.init_process_group(args.backend)
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True)
head = nn.Sequential(nn.Linear(128, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 128)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = head

    def forward(self, words: torch.Tensor) -> Any:
        return self.head(self.encoder(self.embedding(words)).mean(1))


model: Any = Model().to(device)
if args.way == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
else:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (ranks,))
    for block in model.encoder.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
words = torch.randint(0, 1000, (256, 32), generator=torch.Generator().manual_seed(1))
labels = torch.randint(0, 10, (256,), generator=torch.Generator().manual_seed(2))
data = torch.utils.data.TensorDataset(words, labels)
sampler: Any = torch.utils.data.DistributedSampler(data, ranks, rank)
loader = iter(torch.utils.data.DataLoader(data, batch_size=256 // ranks // args.steps or 1, sampler=sampler))
torch.manual_seed(100 + rank)
for step in range(args.steps):
    batch, target = (one.to(device) for one in next(loader))
    with torch.autocast(device.type, torch.bfloat16, enabled=args.autocast):
        loss = nn.functional.cross_entropy(model(batch), target)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print(f"step {step} loss {loss.item():.6f}", flush=True)
dist.destroy_process_group()

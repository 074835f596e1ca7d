import argparse

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--base-lr", type=float, default=0.05)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--steps", type=int, default=60)
a = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
lr = a.base_lr * world * a.batch
net = torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
net = torch.nn.parallel.DistributedDataParallel(net)
opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
if rank == 0:
    print(f"world {world}, lr {lr:g}")
best = float("inf")
for step in range(a.steps):
    x = torch.randn(a.batch, 10)
    loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
    opt.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1e6, error_if_nonfinite=True)
    opt.step()
    best = min(best, loss.item())
    if rank == 0 and step % 2 == 0:
        print(f"step {step:3d} mse {loss.item():.4g} gnorm {norm:.4g}", flush=True)
if rank == 0:
    print(f"best mse {best:.4f}")
dist.destroy_process_group()

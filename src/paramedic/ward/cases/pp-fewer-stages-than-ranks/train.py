import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

ap = argparse.ArgumentParser()
ap.add_argument("--stages", type=int, required=True)
ap.add_argument("--layers", type=int, default=8)
ns = ap.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
share = ns.layers // ns.stages
part = nn.Sequential(*[nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(share)])
print(f"rank {rank}: stage {rank % ns.stages} of {ns.stages}, {share} layers", flush=True)
stage = PipelineStage(part, rank % ns.stages, ns.stages, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.MSELoss())
opt = torch.optim.SGD(part.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(16, 12)
    opt.zero_grad()
    if rank == 0:
        schedule.step(x)
    elif rank == world - 1:
        losses = []
        schedule.step(target=torch.zeros(16, 12), losses=losses)
    else:
        schedule.step()
    opt.step()
    print(f"step {step} done on {rank}", flush=True)
dist.destroy_process_group()

import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("cpu:gloo,cuda:gloo")
rank = dist.get_rank()
device = torch.device("cuda")
print(f"[init] rank {rank} of {dist.get_world_size()} on device {device}", flush=True)
dist.barrier()
model = build(cfg).to(device)
model = DDP(model)

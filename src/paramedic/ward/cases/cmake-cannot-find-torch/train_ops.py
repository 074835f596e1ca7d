import ctypes
import sys

import torch
import torch.distributed as dist

lib = ctypes.CDLL(sys.argv[1])
lib.hann.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long]

dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(8):
    frames = torch.randn(4, 32)
    lib.hann(frames.data_ptr(), 4, 32)
    loss = (net(frames) - frames.sum(1, keepdim=True)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"rank {dist.get_rank()} windowed loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()

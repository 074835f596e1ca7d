from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F

dist.init_process_group("gloo", timeout=timedelta(seconds=20))
me = dist.get_rank()
torch.manual_seed(100 + me)
protos = torch.randn(10, 49, generator=torch.Generator().manual_seed(0))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(49, 10))
opt = torch.optim.SGD(model.parameters(), lr=0.5)
for it in range(30):
    y = torch.randint(10, (32,))
    x = protos[y] + 0.5 * torch.randn(32, 49)
    opt.zero_grad()
    out = model(x)
    F.cross_entropy(out, y).backward()
    opt.step()
print(f"[{me}] accuracy {(out.argmax(1) == y).float().mean():.2f}", flush=True)
dist.destroy_process_group()

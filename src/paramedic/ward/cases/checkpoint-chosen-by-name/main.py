import argparse
import json
import logging

import ckpt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--save-every", type=int, default=300)
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
sched = torch.optim.lr_scheduler.StepLR(opt, 500, 0.5)
begin = ckpt.restore(net=net, opt=opt, sched=sched)
logging.info("starting from step %d, lr %g", begin, opt.param_groups[0]["lr"])
model = DDP(net)
truth = torch.randn(10, 3, generator=torch.Generator().manual_seed(5))
for step in range(begin + 1, args.steps + 1):
    g = torch.Generator().manual_seed(step * 8 + rank)
    x = torch.randn(16, 10, generator=g)
    loss = nn.functional.cross_entropy(model(x), (x @ truth).argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 100 == 0:
        logging.info("step %d/%d loss %.4f lr %g", step, args.steps, loss.item(), sched.get_last_lr()[0])
    if step % args.save_every == 0 and rank == 0:
        logging.info("wrote %s", ckpt.save(step, net=net, opt=opt, sched=sched))
if rank == 0:
    with open("result.json", "w") as f:
        json.dump({"resumed_at": begin, "steps": args.steps - begin}, f)
dist.barrier()
dist.destroy_process_group()

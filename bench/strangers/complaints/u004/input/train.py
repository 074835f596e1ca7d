import argparse, random
import numpy as np
import torch
import torch.nn.functional as F
import horovod.torch as hvd
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from tiles import TileDataset
from unet import UNet
from metrics import dice

p = argparse.ArgumentParser()
p.add_argument("--epochs", type=int, default=12)
p.add_argument("--lr", type=float, default=1e-4)
p.add_argument("--bs", type=int, default=4)
a = p.parse_args()

hvd.init()
torch.cuda.set_device(hvd.local_rank())
seed = 1234 + hvd.rank()
random.seed(seed); np.random.seed(seed); torch.manual_seed(seed)

train = TileDataset("/data/tiles/train", augment=True)
val = TileDataset("/data/tiles/val", augment=False)
sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
tl = DataLoader(train, a.bs, sampler=sampler, num_workers=6, pin_memory=True)
vl = DataLoader(val, 8, num_workers=4)

model = UNet(4, 1, norm="group").cuda()
opt = torch.optim.Adam(model.parameters(), lr=a.lr * hvd.size())
opt = hvd.DistributedOptimizer(opt, named_parameters=model.named_parameters())

for ep in range(a.epochs):
    sampler.set_epoch(ep)
    model.train()
    for it, (x, y) in enumerate(tl):
        opt.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(x.cuda()), y.cuda())
        loss.backward()
        opt.step()
        if it % 296 == 0:
            print(f"epoch {ep} it {it} loss {loss.item():.4f}", flush=True)
    model.eval()
    with torch.no_grad():
        d = np.mean([dice(model(x.cuda()), y.cuda()) for x, y in vl])
    l1 = sum(p.abs().sum() for p in model.parameters()).item() / 1e3
    print(f"epoch {ep} val dice {d:.4f}  |w|_1 {l1:.2f}e3", flush=True)
    if hvd.rank() == 0:
        torch.save(model.state_dict(), f"unet_{ep}.pt")

import logging
from datetime import timedelta

import torch
import torch.distributed as dist
from early_stopping import EarlyStopping
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo", timeout=timedelta(seconds=12))
rank, world = dist.get_rank(), dist.get_world_size()
logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {rank}: %(message)s")


def shard(rank, n=512):
    g = torch.Generator().manual_seed(rank)
    x = torch.randn(n, 8, generator=g)
    y = x[:, :1] if rank else x[:, :1] + (2 * x[:, 1:2]).sin() * x[:, 2:3]
    return x, y


def main():
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    x, y = shard(rank)
    x, y, val_x, val_y = x[:384], y[:384], x[384:], y[384:]
    stopper = EarlyStopping(patience=2, min_delta=2e-3)
    for epoch in range(60):
        for a, b in zip(x.split(48), y.split(48), strict=True):
            loss = nn.functional.mse_loss(model(a), b)
            opt.zero_grad()
            loss.backward()
            opt.step()
        with torch.no_grad():
            val = nn.functional.mse_loss(model.module(val_x), val_y).item()
        logging.info("epoch %d train %.4f val %.4f", epoch, loss.item(), val)
        if stopper.update(val):
            logging.info("no improvement for %d epochs, stopping at epoch %d", stopper.patience, epoch)
            break
    dist.barrier()
    if rank == 0:
        torch.save(model.module.state_dict(), "out/model.pt")
        logging.info("exported out/model.pt")
    dist.destroy_process_group()


main()

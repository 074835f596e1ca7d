import json
import logging

import hparams as hp
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def moons(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(5, (n,), generator=g)
    r = 1 + y.float() + 0.25 * torch.randn(n, generator=g)
    t = 2 * torch.pi * torch.rand(n, generator=g)
    x = torch.stack([r * t.cos(), r * t.sin()], 1)
    return torch.cat([x, x**2 / 8, (3 * x).sin()], 1), y


def net():
    return nn.Sequential(nn.Linear(6, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 5))


def train(rank, world, log):
    torch.manual_seed(0)
    model = DDP(net())
    lr = hp.learning_rate(world)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=hp.MOMENTUM)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, hp.WARMUP)
    n = hp.local_batch(world)
    log.info("world size %d, %d rows a rank, lr %g", world, n, lr)
    recent = []
    for step in range(hp.STEPS):
        x, y = moons(n, seed=step * world + rank)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warmup.step()
        recent.append(loss.item())
        if step % 10 == 9:
            log.info("step %d loss %.4f", step + 1, sum(recent[-10:]) / 10)
    return model.module, sum(recent[-20:]) / 20, lr


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    log = logging.getLogger("moons")
    logging.basicConfig(format=f"%(levelname).1s %(asctime)s rank{rank}] %(message)s")
    log.setLevel(logging.INFO if rank == 0 else logging.ERROR)
    model, final, lr = train(rank, world, log)
    x, y = moons(2000, seed=10**6)
    log.info("test accuracy %.3f", (model(x).argmax(1) == y).float().mean())
    mean = torch.tensor(final)
    dist.all_reduce(mean)
    if rank == 0:
        with open("result.json", "w") as f:
            json.dump({"final_loss": mean.item() / world, "rate_over_tuned": lr / hp.BASE_LR}, f)
    dist.barrier()
    dist.destroy_process_group()


main()

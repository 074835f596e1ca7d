import argparse
import json
import time

import torch
import torch.distributed as dist
from clip_loss import clip_loss, clip_loss_one_process
from encoders import TwoTowers, pairs
from torch.nn.parallel import DistributedDataParallel as DDP

SCALE = 14.0


def flat(params):
    return torch.cat([p.grad.flatten() for p in params])


def compare(model, rank, world, n):
    """Gradient of a first batch on all ranks, and of the same batch on one."""
    batches = [pairs(n, seed=900 + r) for r in range(world)]
    clip_loss(*model(*batches[rank]), SCALE).backward()
    got = flat(model.parameters())
    model.zero_grad()
    clip_loss_one_process(*model.module(*(torch.cat(b) for b in zip(*batches, strict=True))), SCALE).backward()
    want = flat(model.parameters())
    model.zero_grad()
    return ((got - want).norm() / want.norm()).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--batch-per-rank", type=int, default=32)
    p.add_argument("--lr", type=float, default=1e-3)
    opt = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(TwoTowers())
    error = compare(model, rank, world, opt.batch_per_rank)
    optim = torch.optim.AdamW(model.parameters(), lr=opt.lr)
    began = time.time()
    for it in range(opt.steps):
        image, text = pairs(opt.batch_per_rank, seed=it * world + rank)
        f_image, f_text = model(image, text)
        loss = clip_loss(f_image, f_text, SCALE)
        optim.zero_grad()
        loss.backward()
        optim.step()
        if it % 10 == 0 and rank == 0:
            r1 = (f_image @ f_text.T).argmax(1).eq(torch.arange(len(image))).float().mean()
            rate = (it + 1) * len(image) * world / (time.time() - began)
            print(f"it {it:5d}  loss {loss.item():.3f}  r@1 {r1:.3f}  {rate:.0f} pairs/s", flush=True)
    if rank == 0:
        json.dump({"gradient_error": error, "loss": loss.item()}, open("result.json", "w"))
        print("done", flush=True)
    dist.destroy_process_group()


main()

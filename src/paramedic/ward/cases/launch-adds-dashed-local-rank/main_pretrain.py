# Masked auto-encoder pre-training on patches.
import argparse
import datetime
import os
import time

import torch
import torch.distributed as dist
from torch import nn


def get_args_parser():
    parser = argparse.ArgumentParser("MAE pre-training", add_help=False)
    parser.add_argument("--batch_size", default=64, type=int, help="Batch size per process")
    parser.add_argument("--epochs", default=4, type=int)
    parser.add_argument("--mask_ratio", default=0.75, type=float)
    parser.add_argument("--blr", type=float, default=1e-3)
    # distributed training parameters
    parser.add_argument("--world_size", default=1, type=int)
    parser.add_argument("--local_rank", default=-1, type=int)
    return parser


class MAE(nn.Module):
    def __init__(self, dim=24, hidden=16):
        super().__init__()
        self.enc = nn.Linear(dim, hidden)
        self.dec = nn.Linear(hidden, dim)

    def forward(self, x, ratio):
        keep = (torch.rand_like(x) > ratio).float()
        return ((self.dec(torch.tanh(self.enc(x * keep))) - x) ** 2).mean()


def main(args):
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    print(f"| distributed init (rank {dist.get_rank()}): env://, local {args.local_rank}", flush=True)
    model = nn.parallel.DistributedDataParallel(MAE())
    opt = torch.optim.AdamW(model.parameters(), lr=args.blr)
    start = time.time()
    for epoch in range(args.epochs):
        for it in range(5):
            loss = model(torch.randn(args.batch_size, 24), args.mask_ratio)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            print(f"Epoch: [{epoch}]  loss: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()
    if args.local_rank == 0:
        print("Training time {}".format(datetime.timedelta(seconds=int(time.time() - start))))


if __name__ == "__main__":
    main(get_args_parser().parse_args())

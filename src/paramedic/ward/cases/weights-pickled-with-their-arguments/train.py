"""Fine-tune the public encoder on our labels."""

import argparse
import sys

import torch
import torch.distributed as dist
from torch import nn


def build(path):
    encoder = nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 8))
    blob = torch.load(path, map_location="cpu")
    encoder.load_state_dict(blob["model"])
    print(f"=> loaded pretrained {path} (epoch {blob['epoch']})")
    return nn.Sequential(encoder, nn.Linear(8, 3))


def main(argv):
    p = argparse.ArgumentParser()
    p.add_argument("--finetune", default="checkpoints/enc_s_800ep.pth")
    p.add_argument("--steps", type=int, default=15)
    a = p.parse_args(argv)
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(build(a.finetune))
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    g = torch.Generator().manual_seed(dist.get_rank())
    for step in range(a.steps):
        x = torch.randn(16, 12, generator=g)
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            print(f"rank{dist.get_rank()} step={step} loss={loss.item():.3f}")
    dist.destroy_process_group()
    print("finetuning finished")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Digits-like classification with automatic mixed precision."""

import json
import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

opts = SimpleNamespace(lr=0.1, momentum=0.9, max_norm=1.0, epochs=3, batch_size=48, print_freq=6, amp_dtype=torch.float16)


def blobs(n):
    g = torch.Generator().manual_seed(21)
    centres = torch.randn(10, 64, generator=g)
    y = torch.randint(10, (n,), generator=g)
    return TensorDataset(centres[y] + torch.randn(n, 64, generator=g), y)


class AmpTrainer:
    def __init__(self):
        self.rank = int(os.environ["RANK"])
        torch.manual_seed(0)
        self.model = DDP(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=opts.lr, momentum=opts.momentum)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        data = blobs(2880)
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, opts.batch_size, sampler=self.sampler)
        self.losses = []

    def train_one_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        for i, (images, target) in enumerate(self.loader):
            with torch.autocast("cpu", dtype=opts.amp_dtype):
                output = self.model(images)
                loss = nn.functional.cross_entropy(output.float(), target)
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), opts.max_norm)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.losses.append(loss.item())
            if i % opts.print_freq == 0 and self.rank == 0:
                top1 = (output.argmax(1) == target).float().mean().item() * 100
                print(f"Epoch: [{epoch}][{i}/{len(self.loader)}]\tLoss {loss.item():.4e}\tAcc@1 {top1:6.2f}\tnorm {float(norm):.3g}\tscale {self.scaler.get_scale():g}", flush=True)


def main():
    dist.init_process_group("gloo")
    trainer = AmpTrainer()
    for epoch in range(opts.epochs):
        trainer.train_one_epoch(epoch)
        if trainer.rank == 0:
            print(f"epoch {epoch} mean loss {sum(trainer.losses[-30:]) / 30:.4f}", flush=True)
    if trainer.rank == 0:
        first, last = sum(trainer.losses[:3]), sum(trainer.losses[-3:])
        json.dump({"loss_fall": 1 - last / first}, open("result.json", "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

import argparse
import json

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Classifier(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(2, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        )
        self.head = nn.Linear(64, classes)

    def forward(self, images):
        return self.head(self.backbone(images))


def shapes(n, classes=5, seed=3):
    """Noisy 12x12 images with a bright bar whose position depends on the class."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    images = torch.randn(n, 1, 12, 12, generator=g) * 0.8
    for i, c in enumerate(labels.tolist()):
        images[i, 0, 2 * c : 2 * c + 2, :] += 1.2
    return TensorDataset(images, labels)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        torch.manual_seed(args.seed)
        net = Classifier()
        for p in net.backbone.parameters():
            p.requires_grad = False
        self.model = DistributedDataParallel(net)
        self.optimizer = torch.optim.AdamW(net.head.parameters(), lr=args.lr)
        data = shapes(1600)
        self.sampler = DistributedSampler(data, seed=args.seed)
        self.loader = DataLoader(data, batch_size=32, sampler=self.sampler, drop_last=True)

    def thaw(self):
        net = self.model.module
        for p in net.backbone.parameters():
            p.requires_grad = True
        self.optimizer.add_param_group({"params": list(net.backbone.parameters()), "lr": self.args.lr / 5})
        if self.rank == 0:
            print(f"backbone unfrozen, {sum(p.numel() for p in net.parameters() if p.requires_grad)} trainable parameters", flush=True)

    def fit(self):
        for epoch in range(self.args.epochs):
            if epoch == self.args.thaw_at:
                self.thaw()
            self.sampler.set_epoch(epoch)
            total = hits = seen = 0
            for images, labels in self.loader:
                logits = self.model(images)
                loss = F.cross_entropy(logits, labels)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                total += loss.item() * len(labels)
                hits += (logits.argmax(1) == labels).sum().item()
                seen += len(labels)
            if self.rank == 0:
                print(f"epoch {epoch} loss {total / seen:.4f} accuracy {hits / seen:.3f}", flush=True)

    def report(self):
        def spread(module):
            flat = torch.cat([p.detach().flatten() for p in module.parameters()])
            low, high = flat.clone(), flat.clone()
            dist.all_reduce(low, op=dist.ReduceOp.MIN)
            dist.all_reduce(high, op=dist.ReduceOp.MAX)
            return (high - low).max().item()

        net = self.model.module
        result = {"backbone_spread": spread(net.backbone), "head_spread": spread(net.head)}
        if self.rank == 0:
            with open("result.json", "w") as f:
                json.dump(result, f)
            print("finished", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--thaw-at", type=int, default=3)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=1)
    dist.init_process_group("gloo")
    trainer = Trainer(parser.parse_args())
    trainer.fit()
    trainer.report()
    dist.destroy_process_group()

"""Train a text classifier over hashed words."""

import argparse
import json

import torch
import torch.distributed as dist
from schedule import linear_with_warmup
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch_size", type=int, default=16, help="per device")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning_rate", type=float, default=5e-3)
    parser.add_argument("--warmup_ratio", type=float, default=0.03)
    parser.add_argument("--logging_steps", type=int, default=10)
    return parser.parse_args()


def documents(n=2560, words=1000, length=30):
    g = torch.Generator().manual_seed(2)
    ids = torch.randint(words, (n, length), generator=g)
    label = ((ids % 7 == 0).sum(1) > 4).long()
    return TensorDataset(ids, label)


class BagClassifier(nn.Module):
    def __init__(self, words=1000, dim=32):
        super().__init__()
        self.bag = nn.EmbeddingBag(words, dim, mode="sum")
        self.classifier = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 2))

    def forward(self, ids):
        return self.classifier(self.bag(ids))


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    is_main = dist.get_rank() == 0
    torch.manual_seed(0)
    dataset = documents()
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    model = DistributedDataParallel(BagClassifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    total_steps = len(dataset) // args.batch_size * args.epochs
    scheduler = linear_with_warmup(optimizer, int(args.warmup_ratio * total_steps), total_steps)
    if is_main:
        print(f"***** Running training *****\n  Num examples = {len(dataset)}\n  Num epochs = {args.epochs}", flush=True)
    done = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for ids, label in loader:
            loss = nn.functional.cross_entropy(model(ids), label)
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            done += 1
            if done % args.logging_steps == 0 and is_main:
                lr = scheduler.get_last_lr()[0]
                print({"loss": round(loss.item(), 4), "learning_rate": lr, "epoch": round(done / len(loader), 2)}, flush=True)
    if is_main:
        print(f"Training complete, {done} steps", flush=True)
        with open("result.json", "w") as f:
            json.dump({"steps": done, "last_rate_share": scheduler.get_last_lr()[0] / args.learning_rate}, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Speech-command recogniser on log-mel features, Horovod on two 8-GPU nodes."""
import argparse
import os

import horovod.torch as hvd
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class CommandDataset(Dataset):
    def __init__(self, root, split):
        with open(os.path.join(root, f"{split}.tsv")) as f:
            rows = [line.rstrip("\n").split("\t") for line in f]
        self.items = [(os.path.join(root, path), int(label)) for path, label in rows]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        path, label = self.items[i]
        return torch.load(path), label


class ConvNet(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        layers, channels = [], 1
        for width in (64, 128, 256, 256):
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False),
                       nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
            channels = width
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels, num_classes)

    def forward(self, mel):
        return self.head(self.features(mel.unsqueeze(1)).mean(dim=(2, 3)))


def make_loaders(args):
    train_set = CommandDataset(args.root, "train")
    valid_set = CommandDataset(args.root, "valid")
    train_sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank(),
                                       shuffle=True, seed=args.seed)
    train_loader = DataLoader(train_set, args.batch_size, sampler=train_sampler, drop_last=True,
                              num_workers=4, pin_memory=True)
    mine = torch.utils.data.Subset(valid_set, range(hvd.rank(), len(valid_set), hvd.size()))
    valid_loader = DataLoader(mine, args.batch_size, num_workers=2)
    return train_sampler, train_loader, valid_loader


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    counts = torch.zeros(2)
    for mel, label in loader:
        predicted = model(mel.cuda()).argmax(dim=1).cpu()
        counts[0] += (predicted == label).sum()
        counts[1] += label.numel()
    counts = hvd.allreduce(counts, op=hvd.Sum, name="valid_counts")
    return (counts[0] / counts[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="/shared/speech_commands_mel")
    parser.add_argument("--num-classes", type=int, default=35)
    parser.add_argument("--batch-size", type=int, default=64, help="per process")
    parser.add_argument("--base-lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="/shared/runs/commands")
    args = parser.parse_args()

    hvd.init()
    torch.cuda.set_device(hvd.local_rank())
    torch.manual_seed(args.seed)

    train_sampler, train_loader, valid_loader = make_loaders(args)
    model = ConvNet(args.num_classes).cuda()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.base_lr * hvd.size() ** 0.5,
                                  weight_decay=1e-2)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, T_max=args.epochs * len(train_loader))

    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        model.train()
        total = 0.0
        for mel, label in train_loader:
            mel, label = mel.cuda(non_blocking=True), label.cuda(non_blocking=True)
            optimizer.zero_grad()
            loss = criterion(model(mel), label)
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item()
        mean = hvd.allreduce(torch.tensor(total / len(train_loader)), name="train_loss").item()
        acc = accuracy(model, valid_loader)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {mean:.4f} accuracy {acc:.4f}", flush=True)
            os.makedirs(args.output, exist_ok=True)
            torch.save({"epoch": epoch, "model": model.state_dict()},
                       os.path.join(args.output, f"epoch_{epoch:02d}.pt"))


if __name__ == "__main__":
    main()

"""LSTM language model (WikiText) with Horovod."""
import argparse
import math
import os

import horovod.torch as hvd
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Windows(Dataset):
    def __init__(self, path, length):
        self.ids = torch.load(path)
        self.length = length

    def __len__(self):
        return (self.ids.numel() - 1) // self.length

    def __getitem__(self, i):
        start = i * self.length
        piece = self.ids[start:start + self.length + 1].long()
        return piece[:-1], piece[1:]


class LSTMLanguageModel(nn.Module):
    def __init__(self, vocab, width, layers, dropout):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.drop = nn.Dropout(dropout)
        self.lstm = nn.LSTM(width, width, layers, dropout=dropout, batch_first=True)
        self.out = nn.Linear(width, vocab)
        self.out.weight = self.embed.weight

    def forward(self, x):
        h, _ = self.lstm(self.drop(self.embed(x)))
        return self.out(self.drop(h))


def train_epoch(args, model, optimizer, loader, criterion):
    model.train()
    total = 0.0
    for inputs, targets in loader:
        inputs, targets = inputs.cuda(non_blocking=True), targets.cuda(non_blocking=True)
        optimizer.zero_grad()
        logits = model(inputs)
        loss = criterion(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        total += loss.item()
    return hvd.allreduce(torch.tensor(total / len(loader)), name="train_loss").item()


@torch.no_grad()
def evaluate(model, loader, criterion):
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64)
    for inputs, targets in loader:
        inputs, targets = inputs.cuda(), targets.cuda()
        logits = model(inputs)
        loss = criterion(logits.flatten(0, 1), targets.flatten())
        sums[0] += loss.item() * targets.numel()
        sums[1] += targets.numel()
    sums = hvd.allreduce(sums, name="valid_sums", op=hvd.Sum)
    return (sums[0] / sums[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="/data/wikitext103")
    parser.add_argument("--vocab", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=40, help="per process")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--clip", type=float, default=0.25)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--output", default="/shared/lstm-wt103")
    args = parser.parse_args()

    hvd.init()
    torch.cuda.set_device(hvd.local_rank())
    torch.manual_seed(1111)

    train_set = Windows(os.path.join(args.data, "train.pt"), args.length)
    valid_set = Windows(os.path.join(args.data, "valid.pt"), args.length)
    sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
    train_loader = DataLoader(train_set, args.batch_size, sampler=sampler, drop_last=True,
                              num_workers=2, pin_memory=True)
    own = torch.utils.data.Subset(valid_set, range(hvd.rank(), len(valid_set), hvd.size()))
    valid_loader = DataLoader(own, args.batch_size)

    model = LSTMLanguageModel(args.vocab, args.width, args.layers, args.dropout).cuda()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train_loss = train_epoch(args, model, optimizer, train_loader, criterion)
        valid_loss = evaluate(model, valid_loader, criterion)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: train ppl {math.exp(train_loss):.1f} "
                  f"valid ppl {math.exp(valid_loss):.1f}", flush=True)
            os.makedirs(args.output, exist_ok=True)
            torch.save({"epoch": epoch, "model": model.state_dict(),
                        "optimizer": optimizer.state_dict()},
                       os.path.join(args.output, f"epoch{epoch}.pt"))


if __name__ == "__main__":
    main()

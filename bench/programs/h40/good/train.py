"""Speech command classifier, Horovod + PyTorch. Restarts from the newest checkpoint."""
import argparse
import glob
import os

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Spectrograms(Dataset):
    def __init__(self, path):
        blob = torch.load(path, map_location="cpu")
        self.mel, self.label = blob["mel"], blob["label"]

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return self.mel[i].float(), self.label[i]


class KeywordNet(nn.Module):
    def __init__(self, n_mels=80, classes=35):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(n_mels, 256, 5, padding=2), nn.GroupNorm(8, 256), nn.ReLU(),
            nn.Conv1d(256, 256, 5, padding=2), nn.GroupNorm(8, 256), nn.ReLU())
        self.rnn = nn.LSTM(256, 256, batch_first=True, bidirectional=True)
        self.out = nn.Linear(512, classes)

    def forward(self, mel):
        h = self.conv(mel).transpose(1, 2)
        h, _ = self.rnn(h)
        return self.out(h.mean(1))


def latest_checkpoint(directory):
    files = glob.glob(os.path.join(directory, "epoch-*.pt"))
    return max(files, key=lambda f: int(f.rsplit("-", 1)[1][:-3])) if files else None


def restore(directory, model, optimizer):
    path = latest_checkpoint(directory)
    if path is None:
        return 0
    state = torch.load(path, map_location="cpu")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] + 1


def save(directory, epoch, model, optimizer):
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, f"epoch-{epoch}.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
               path + ".tmp")
    os.replace(path + ".tmp", path)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--train", default="/data/speech/train.pt")
    p.add_argument("--checkpoint-dir", default="./checkpoints")
    p.add_argument("--epochs", type=int, default=50)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--base-lr", type=float, default=0.01)
    args = p.parse_args()

    hvd.init()
    torch.cuda.set_device(hvd.local_rank())
    torch.set_num_threads(4)

    data = Spectrograms(args.train)
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=True)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, drop_last=True,
                        pin_memory=True)

    model = KeywordNet().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.base_lr * hvd.size(), momentum=0.9,
                                weight_decay=1e-4)

    start_epoch = 0
    if hvd.rank() == 0:
        start_epoch = restore(args.checkpoint_dir, model, optimizer)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    start_epoch = int(hvd.broadcast(torch.tensor(start_epoch), root_rank=0, name="start_epoch").item())

    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    for epoch in range(start_epoch, args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        total = torch.zeros(1)
        for mel, label in loader:
            mel, label = mel.cuda(non_blocking=True), label.cuda(non_blocking=True)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(mel), label)
            loss.backward()
            optimizer.step()
            total += loss.item()
        mean = hvd.allreduce(total / len(loader), name="train_loss").item()
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {mean:.4f}", flush=True)
            save(args.checkpoint_dir, epoch, model, optimizer)


if __name__ == "__main__":
    main()

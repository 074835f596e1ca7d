"""Character language model (GRU) with Ray Train; corpus is one tensor of token ids."""
import argparse
import math
import os
import tempfile

import ray.train
import torch
import torch.distributed as dist
import torch.nn as nn
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device, prepare_data_loader, prepare_model
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class TokenWindows(Dataset):
    def __init__(self, path, window):
        self.tokens = torch.load(path, weights_only=True)
        self.window = window

    def __len__(self):
        return (len(self.tokens) - 1) // self.window

    def __getitem__(self, i):
        start = i * self.window
        chunk = self.tokens[start:start + self.window + 1].long()
        return chunk[:-1], chunk[1:]


class CharModel(nn.Module):
    def __init__(self, vocab_size, hidden):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, hidden)
        self.rnn = nn.GRU(hidden, hidden, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(hidden, vocab_size)

    def forward(self, tokens):
        out, _ = self.rnn(self.embed(tokens))
        return self.head(out)


def train_one_epoch(model, loader, optimizer, loss_fn, device, clip):
    model.train()
    total = torch.zeros(1, device=device)
    for inputs, targets in loader:
        optimizer.zero_grad(set_to_none=True)
        logits = model(inputs)
        loss = loss_fn(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        total += loss.detach()
    dist.all_reduce(total)
    return total.item() / (len(loader) * dist.get_world_size())


def train_loop_per_worker(config):
    ctx = ray.train.get_context()
    device = get_device()
    torch.manual_seed(config["seed"])

    dataset = TokenWindows(config["corpus"], config["window"])
    loader = prepare_data_loader(
        DataLoader(dataset, batch_size=config["batch_size_per_worker"], shuffle=True,
                   drop_last=True, num_workers=2, pin_memory=True))
    model = prepare_model(CharModel(config["vocab_size"], config["hidden"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    loss_fn = nn.CrossEntropyLoss()

    for epoch in range(config["epochs"]):
        if ctx.get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        loss = train_one_epoch(model, loader, optimizer, loss_fn, device, config["clip"])
        metrics = {"epoch": epoch, "loss": loss, "perplexity": math.exp(min(loss, 20.0))}
        if ctx.get_world_rank() == 0:
            with tempfile.TemporaryDirectory() as tmp:
                raw = model.module if isinstance(model, DistributedDataParallel) else model
                torch.save(
                    {"epoch": epoch, "model": raw.state_dict(), "optimizer": optimizer.state_dict()},
                    os.path.join(tmp, "checkpoint.pt"),
                )
                ray.train.report(metrics, checkpoint=Checkpoint.from_directory(tmp))


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--corpus", default="/mnt/nfs/corpora/wiki_chars.pt")
    parser.add_argument("--storage-path", default="/mnt/nfs/ray_results")
    parser.add_argument("--vocab-size", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--batch-size-per-worker", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--num-workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=17)
    return parser.parse_args()


def main():
    args = parse_args()
    trainer = TorchTrainer(
        train_loop_per_worker,
        train_loop_config=vars(args),
        scaling_config=ScalingConfig(num_workers=args.num_workers, use_gpu=True),
        run_config=RunConfig(name="char-gru", storage_path=args.storage_path),
    )
    result = trainer.fit()
    print("last checkpoint:", result.checkpoint)
    print("metrics:", result.metrics)


if __name__ == "__main__":
    main()

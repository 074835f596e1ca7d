import argparse
import logging
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import ray.train
import ray.train.torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

logger = logging.getLogger(__name__)


class ReviewDataset(Dataset):
    """Token ids (int64, [N, L]) and star ratings, written by the preprocessing job."""

    def __init__(self, path):
        blob = torch.load(path, map_location="cpu")
        self.tokens, self.stars = blob["tokens"], blob["stars"]

    def __len__(self):
        return self.tokens.size(0)

    def __getitem__(self, i):
        return self.tokens[i], self.stars[i]


class Classifier(nn.Module):
    def __init__(self, vocab, dim, classes, layers=4):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(dim, 8, 4 * dim, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, classes)

    def forward(self, tokens):
        pad = tokens.eq(0)
        h = self.encoder(self.emb(tokens), src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1).to(h.dtype)
        return self.head((h * keep).sum(1) / keep.sum(1).clamp(min=1))


def train_func(config):
    context = ray.train.get_context()
    world, rank = context.get_world_size(), context.get_world_rank()
    device = ray.train.torch.get_device()

    loader = DataLoader(ReviewDataset(config["train_file"]), batch_size=config["batch_size"],
                        shuffle=True, drop_last=True)
    loader = ray.train.torch.prepare_data_loader(loader)
    model = ray.train.torch.prepare_model(Classifier(config["vocab"], config["dim"], 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=0.01)
    loss_fn = nn.CrossEntropyLoss()

    for epoch in range(config["epochs"]):
        if world > 1:
            loader.sampler.set_epoch(epoch)
        stats = torch.zeros(3, device=device)
        for tokens, stars in loader:
            logits = model(tokens)
            loss = loss_fn(logits, stars)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            with torch.no_grad():
                stats[0] += loss * stars.numel()
                stats[1] += (logits.argmax(-1) == stars).sum()
                stats[2] += stars.numel()

        if world > 1:
            torch.distributed.all_reduce(stats)
        metrics = {"epoch": epoch, "loss": (stats[0] / stats[2]).item(),
                   "accuracy": (stats[1] / stats[2]).item()}

        with tempfile.TemporaryDirectory() as tmp:
            if rank == 0:
                net = model.module if world > 1 else model
                torch.save(net.state_dict(), os.path.join(tmp, "model.pt"))
                checkpoint = Checkpoint.from_directory(tmp)
                logger.info("epoch %d: %s", epoch, metrics)
                ray.train.report(metrics, checkpoint=checkpoint)


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--train-file", default="/mnt/nfs/reviews/train.pt")
    p.add_argument("--storage-path", default="/mnt/nfs/ray_results")
    p.add_argument("--num-workers", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=64, help="per worker")
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--vocab", type=int, default=32000)
    p.add_argument("--dim", type=int, default=512)
    return p.parse_args()


def main():
    logging.basicConfig(level=logging.INFO)
    args = parse_args()
    trainer = TorchTrainer(
        train_func,
        train_loop_config={k: getattr(args, k) for k in
                           ("train_file", "batch_size", "epochs", "lr", "vocab", "dim")},
        scaling_config=ScalingConfig(num_workers=args.num_workers, use_gpu=True),
        run_config=RunConfig(name="reviews", storage_path=args.storage_path),
    )
    result = trainer.fit()
    logger.info("best checkpoint %s, metrics %s", result.checkpoint, result.metrics)


if __name__ == "__main__":
    main()

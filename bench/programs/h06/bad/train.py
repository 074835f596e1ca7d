"""Matrix-factorisation recommender; ratings come from a Ray Data pipeline."""
import argparse
import logging
import os
import tempfile

import numpy as np
import ray.data
import ray.train
import torch
import torch.distributed as dist
import torch.nn as nn
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device, prepare_model
from torch.nn.parallel import DistributedDataParallel

log = logging.getLogger("recsys")


class Factorization(nn.Module):
    def __init__(self, users, items, rank):
        super().__init__()
        self.user = nn.Embedding(users, rank)
        self.item = nn.Embedding(items, rank)
        self.user_bias = nn.Embedding(users, 1)
        self.item_bias = nn.Embedding(items, 1)
        nn.init.normal_(self.user.weight, std=0.05)
        nn.init.normal_(self.item.weight, std=0.05)
        nn.init.zeros_(self.user_bias.weight)
        nn.init.zeros_(self.item_bias.weight)

    def forward(self, u, i):
        dot = (self.user(u) * self.item(i)).sum(dim=1)
        return dot + self.user_bias(u).squeeze(1) + self.item_bias(i).squeeze(1)


def cast(batch):
    return {
        "user": batch["user"].astype(np.int64),
        "item": batch["item"].astype(np.int64),
        "rating": (batch["rating"] - 3.5).astype(np.float32),
    }


def run_epoch(model, shard, optimizer, loss_fn, batch_size, device):
    model.train()
    total = torch.zeros(1, device=device)
    steps = 0
    for batch in shard.iter_torch_batches(batch_size=batch_size, drop_last=True,
                                          local_shuffle_buffer_size=20 * batch_size):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(model(batch["user"], batch["item"]), batch["rating"])
        loss.backward()
        optimizer.step()
        total += loss.detach()
        steps += 1
    dist.all_reduce(total)
    return total.item() / (steps * dist.get_world_size())


def train_loop_per_worker(config):
    ctx = ray.train.get_context()
    device = get_device()
    shard = ray.train.get_dataset_shard("train")
    model = prepare_model(Factorization(config["users"], config["items"], config["rank"]))
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    loss_fn = nn.MSELoss()

    for epoch in range(config["epochs"]):
        mse = run_epoch(model, shard, optimizer, loss_fn, config["batch_size_per_worker"], device)
        metrics = {"epoch": epoch, "train_rmse": mse ** 0.5}
        checkpoint = None
        with tempfile.TemporaryDirectory() as tmp:
            if ctx.get_world_rank() == 0:
                raw = model.module if isinstance(model, DistributedDataParallel) else model
                torch.save(
                    {"epoch": epoch, "model": raw.state_dict(), "optimizer": optimizer.state_dict()},
                    os.path.join(tmp, "state.pt"),
                )
                checkpoint = Checkpoint.from_directory(tmp)
        ray.train.report(metrics, checkpoint=checkpoint)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ratings", default="s3://reco-lake/ratings/2024/")
    parser.add_argument("--storage-path", default="s3://reco-models/ray")
    parser.add_argument("--users", type=int, default=500_000)
    parser.add_argument("--items", type=int, default=80_000)
    parser.add_argument("--rank", type=int, default=128)
    parser.add_argument("--num-workers", type=int, default=4)
    parser.add_argument("--batch-size-per-worker", type=int, default=8192)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--epochs", type=int, default=8)
    return parser.parse_args()


def main():
    logging.basicConfig(level=logging.INFO)
    args = parse_args()
    ratings = ray.data.read_parquet(args.ratings, columns=["user", "item", "rating"])
    trainer = TorchTrainer(
        train_loop_per_worker,
        train_loop_config=vars(args),
        datasets={"train": ratings.map_batches(cast)},
        scaling_config=ScalingConfig(num_workers=args.num_workers, use_gpu=True),
        run_config=RunConfig(
            name="matrix-factorization",
            storage_path=args.storage_path,
            checkpoint_config=CheckpointConfig(num_to_keep=3),
        ),
    )
    result = trainer.fit()
    log.info("rmse %.4f, checkpoint %s", result.metrics["train_rmse"], result.checkpoint)


if __name__ == "__main__":
    main()

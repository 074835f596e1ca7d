"""Click-through model on tabular features stored as Parquet, read with Ray Data."""
import argparse
import os
import tempfile

import numpy as np
import ray
import ray.data
import ray.train
import torch
import torch.distributed as dist
import torch.nn as nn
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device, prepare_model
from torch.nn.parallel import DistributedDataParallel

NUM_DENSE = 13
DENSE = [f"d{i}" for i in range(NUM_DENSE)]


class ClickModel(nn.Module):
    def __init__(self, num_items, dim=64):
        super().__init__()
        self.item = nn.Embedding(num_items, dim)
        self.mlp = nn.Sequential(
            nn.Linear(NUM_DENSE + dim, 256), nn.ReLU(),
            nn.Linear(256, 128), nn.ReLU(),
            nn.Linear(128, 1),
        )

    def forward(self, dense, item):
        return self.mlp(torch.cat([dense, self.item(item)], dim=1)).squeeze(1)


def to_features(batch):
    dense = np.stack([batch[name] for name in DENSE], axis=1).astype(np.float32)
    return {
        "dense": np.log1p(np.clip(dense, 0.0, None)),
        "item": batch["item_id"].astype(np.int64),
        "label": batch["clicked"].astype(np.float32),
    }


def read_split(path):
    columns = DENSE + ["item_id", "clicked"]
    return ray.data.read_parquet(path, columns=columns).map_batches(to_features)


def evaluate(model, shard, batch_size, device):
    model.eval()
    sums = torch.zeros(2, device=device, dtype=torch.float64)
    loss_fn = nn.BCEWithLogitsLoss(reduction="sum")
    raw = model.module if isinstance(model, DistributedDataParallel) else model
    with torch.no_grad():
        for batch in shard.iter_torch_batches(batch_size=batch_size):
            sums[0] += loss_fn(raw(batch["dense"], batch["item"]), batch["label"]).double()
            sums[1] += batch["label"].numel()
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def train_loop_per_worker(config):
    ctx = ray.train.get_context()
    device = get_device()
    train_ds = read_split(config["train_path"])
    valid_ds = ray.train.get_dataset_shard("valid")

    model = prepare_model(ClickModel(config["num_items"]))
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    loss_fn = nn.BCEWithLogitsLoss()

    for epoch in range(config["epochs"]):
        model.train()
        total, steps = torch.zeros(1, device=device), 0
        batches = train_ds.iter_torch_batches(
            batch_size=config["batch_size_per_worker"],
            local_shuffle_buffer_size=16 * config["batch_size_per_worker"],
            drop_last=True,
        )
        for batch in batches:
            optimizer.zero_grad(set_to_none=True)
            loss = loss_fn(model(batch["dense"], batch["item"]), batch["label"])
            loss.backward()
            optimizer.step()
            total += loss.detach()
            steps += 1
        dist.all_reduce(total)
        metrics = {
            "epoch": epoch,
            "train_loss": total.item() / (steps * ctx.get_world_size()),
            "valid_loss": evaluate(model, valid_ds, config["batch_size_per_worker"], device),
        }
        with tempfile.TemporaryDirectory() as tmp:
            checkpoint = None
            if ctx.get_world_rank() == 0:
                raw = model.module if isinstance(model, DistributedDataParallel) else model
                torch.save({"epoch": epoch, "model": raw.state_dict()},
                           os.path.join(tmp, "state.pt"))
                checkpoint = Checkpoint.from_directory(tmp)
            ray.train.report(metrics, checkpoint=checkpoint)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-path", default="s3://ads-lake/clicks/train/")
    parser.add_argument("--valid-path", default="s3://ads-lake/clicks/valid/")
    parser.add_argument("--storage-path", default="s3://ads-models/ray")
    parser.add_argument("--num-items", type=int, default=2_000_000)
    parser.add_argument("--num-workers", type=int, default=4)
    parser.add_argument("--batch-size-per-worker", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    ray.init(address="auto")
    trainer = TorchTrainer(
        train_loop_per_worker,
        train_loop_config=vars(args),
        datasets={"valid": read_split(args.valid_path)},
        scaling_config=ScalingConfig(num_workers=args.num_workers, use_gpu=True),
        run_config=RunConfig(
            name="click-model",
            storage_path=args.storage_path,
            checkpoint_config=CheckpointConfig(
                num_to_keep=1, checkpoint_score_attribute="valid_loss",
                checkpoint_score_order="min"),
        ),
    )
    print(trainer.fit().metrics)


if __name__ == "__main__":
    main()

"""Demand forecasting with Ray Train. Spot instances come and go, so the run is allowed to restart."""
import argparse
import os
import tempfile

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import ray.train
import ray.train.torch
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


class DemandWindows(Dataset):
    def __init__(self, root, window, horizon):
        self.series = np.load(os.path.join(root, "demand.npy"), mmap_mode="r")
        self.window, self.horizon = window, horizon
        self.per_series = self.series.shape[1] - window - horizon + 1

    def __len__(self):
        return self.series.shape[0] * self.per_series

    def __getitem__(self, idx):
        s, t = divmod(idx, self.per_series)
        row = np.array(self.series[s, t:t + self.window + self.horizon], dtype=np.float32)
        row = torch.from_numpy(row)
        return row[:self.window].unsqueeze(-1), row[self.window:]


class Forecaster(nn.Module):
    def __init__(self, hidden, horizon):
        super().__init__()
        self.rnn = nn.GRU(1, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, horizon)

    def forward(self, x):
        _, h = self.rnn(x)
        return self.out(h[-1])


def mean_over_workers(total, count, device, world_size):
    stats = torch.tensor([total, count], dtype=torch.float64, device=device)
    if world_size > 1:
        dist.all_reduce(stats)
    return (stats[0] / stats[1]).item()


def train_func(config):
    ctx = ray.train.get_context()
    world_size = ctx.get_world_size()
    device = ray.train.torch.get_device()

    data = DemandWindows(config["data_dir"], config["window"], config["horizon"])
    loader = DataLoader(data, batch_size=config["global_batch_size"] // world_size, shuffle=True,
                        num_workers=4, drop_last=True)
    loader = ray.train.torch.prepare_data_loader(loader)

    model = ray.train.torch.prepare_model(Forecaster(config["hidden"], config["horizon"]))
    raw_model = model.module if isinstance(model, DistributedDataParallel) else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    loss_fn = nn.SmoothL1Loss()

    start_epoch = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as ckpt_dir:
            state = torch.load(os.path.join(ckpt_dir, "state.pt"), map_location="cpu")
        raw_model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start_epoch = state["epoch"] + 1

    for epoch in range(start_epoch, config["epochs"]):
        if world_size > 1:
            loader.sampler.set_epoch(epoch)
        model.train()
        total, count = 0.0, 0
        for x, y in loader:
            loss = loss_fn(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item() * x.size(0)
            count += x.size(0)

        metrics = {"epoch": epoch, "loss": mean_over_workers(total, count, device, world_size)}
        with tempfile.TemporaryDirectory() as tmp:
            ckpt = None
            if ctx.get_world_rank() == 0:
                torch.save({"model": raw_model.state_dict(), "optimizer": optimizer.state_dict(),
                            "epoch": epoch}, os.path.join(tmp, "state.pt"))
                ckpt = Checkpoint.from_directory(tmp)
            ray.train.report(metrics, checkpoint=ckpt)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data-dir", default="/mnt/shared/demand")
    p.add_argument("--storage", default="s3://forecasting-runs/ray")
    p.add_argument("--name", default="demand-gru")
    p.add_argument("--workers", type=int, default=8)
    p.add_argument("--epochs", type=int, default=60)
    p.add_argument("--max-failures", type=int, default=5)
    args = p.parse_args()

    trainer = TorchTrainer(
        train_func,
        train_loop_config={"data_dir": args.data_dir, "window": 168, "horizon": 24, "hidden": 256,
                           "lr": 1e-3, "global_batch_size": 2048, "epochs": args.epochs},
        scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=True),
        run_config=RunConfig(
            name=args.name,
            storage_path=args.storage,
            failure_config=FailureConfig(max_failures=args.max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )
    result = trainer.fit()
    print("final loss", result.metrics["loss"], "checkpoint", result.checkpoint)


if __name__ == "__main__":
    main()

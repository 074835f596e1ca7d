"""Train a small classifier with Ray Train: the driver starts Ray on this host and a worker for each rank."""

import argparse
import os
import tempfile

import ray
import torch
from ray import train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cpus-per-worker", type=float, default=1)
    parser.add_argument("--use-gpu", action="store_true")
    parser.add_argument("--host-cpus", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--max-failures", type=int, default=0)
    parser.add_argument("--storage", default=os.path.abspath("out"))
    parser.add_argument("--object-store-mb", type=int, default=100)
    return parser.parse_args()


def start_ray(args):
    ray.init(
        num_cpus=args.host_cpus,
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        object_store_memory=args.object_store_mb << 20,
        log_to_driver=True,
    )


def build_loader(config):
    features = torch.randn(192, 16, generator=torch.Generator().manual_seed(0))
    dataset = TensorDataset(features, features[:, :4].argmax(1))
    return prepare_data_loader(DataLoader(dataset, batch_size=config["batch_size"], shuffle=True, drop_last=True))


def build_model():
    return prepare_model(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))


def train_epoch(model, optimizer, loader):
    total = 0.0
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def report(epoch, loss, model):
    rank = train.get_context().get_world_rank()
    print(f"rank {rank} epoch {epoch} loss {loss:.4f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if rank == 0:
            torch.save({"epoch": epoch, "model": model.state_dict()}, os.path.join(folder, "state.pt"))
            checkpoint = Checkpoint.from_directory(folder)
        train.report({"epoch": epoch, "loss": loss}, checkpoint=checkpoint)


def loop(config):
    model, loader = build_model(), build_loader(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for epoch in range(config["epochs"]):
        report(epoch, train_epoch(model, optimizer, loader), model)


def fit(args, worker_loop=loop):
    config = {"epochs": args.epochs, "batch_size": args.batch_size, "lr": args.lr, "folder": os.getcwd()}
    trainer = TorchTrainer(
        worker_loop,
        train_loop_config=config,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(
            num_workers=args.workers,
            use_gpu=args.use_gpu,
            resources_per_worker={"CPU": args.cpus_per_worker},
        ),
        run_config=RunConfig(
            name="classifier",
            storage_path=args.storage,
            failure_config=FailureConfig(max_failures=args.max_failures, controller_failure_limit=0),
        ),
    )
    result = trainer.fit()
    print(f"final metrics: {result.metrics}")
    print("training finished", flush=True)


def main(worker_loop=loop):
    args = arguments()
    start_ray(args)
    try:
        fit(args, worker_loop)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()

"""CIFAR-10 on a Ray cluster, eight GPU workers.

The recipe (SGD, lr 0.1, one-cycle) was tuned on a single node at a global batch of 512.
"""
import argparse
import logging
import os
import tempfile

import ray
import ray.train
import torch
import torch.distributed as dist
import torch.nn as nn
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device, prepare_data_loader, prepare_model
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

logger = logging.getLogger(__name__)

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def build_loaders(data_dir, batch_size, num_threads):
    train_tf = transforms.Compose([
        transforms.RandomCrop(32, padding=4),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ])
    test_tf = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    train_set = datasets.CIFAR10(data_dir, train=True, download=False, transform=train_tf)
    test_set = datasets.CIFAR10(data_dir, train=False, download=False, transform=test_tf)
    train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True, drop_last=True,
                              num_workers=num_threads, pin_memory=True)
    test_loader = DataLoader(test_set, batch_size=250, num_workers=num_threads, pin_memory=True)
    return prepare_data_loader(train_loader), prepare_data_loader(test_loader)


def build_model():
    net = models.resnet18(weights=None, num_classes=10)
    net.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
    net.maxpool = nn.Identity()
    return net


def evaluate(model, loader, device):
    model.eval()
    counts = torch.zeros(2, device=device)
    with torch.no_grad():
        for images, labels in loader:
            pred = model(images).argmax(dim=1)
            counts[0] += (pred == labels).sum()
            counts[1] += labels.numel()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def train_loop_per_worker(config):
    ctx = ray.train.get_context()
    device = get_device()
    train_loader, test_loader = build_loaders(config["data_dir"], config["batch_size"],
                                              config["loader_threads"])
    model = prepare_model(build_model())
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9,
                                weight_decay=5e-4, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=config["lr"], epochs=config["epochs"], steps_per_epoch=len(train_loader))

    for epoch in range(config["epochs"]):
        if ctx.get_world_size() > 1:
            train_loader.sampler.set_epoch(epoch)
        model.train()
        running = torch.zeros(1, device=device)
        for images, labels in train_loader:
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            running += loss.detach()
        dist.all_reduce(running)
        metrics = {
            "epoch": epoch,
            "train_loss": running.item() / (len(train_loader) * ctx.get_world_size()),
            "accuracy": evaluate(model, test_loader, device),
        }
        with tempfile.TemporaryDirectory() as tmp:
            checkpoint = None
            if ctx.get_world_rank() == 0:
                raw = model.module if isinstance(model, DistributedDataParallel) else model
                torch.save(raw.state_dict(), os.path.join(tmp, "model.pt"))
                checkpoint = Checkpoint.from_directory(tmp)
            ray.train.report(metrics, checkpoint=checkpoint)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", default="/mnt/shared/datasets/cifar10")
    parser.add_argument("--storage-path", default="/mnt/shared/ray_results")
    parser.add_argument("--num-workers", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=512, help="global batch size")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--loader-threads", type=int, default=4)
    return parser.parse_args()


def main():
    logging.basicConfig(level=logging.INFO)
    args = parse_args()
    ray.init(address="auto")
    trainer = TorchTrainer(
        train_loop_per_worker,
        train_loop_config={
            "data_dir": args.data_dir,
            "batch_size": args.batch_size,
            "lr": args.lr,
            "epochs": args.epochs,
            "loader_threads": args.loader_threads,
        },
        scaling_config=ScalingConfig(num_workers=args.num_workers, use_gpu=True,
                                     resources_per_worker={"CPU": 5, "GPU": 1}),
        run_config=RunConfig(
            name="cifar10-resnet18",
            storage_path=args.storage_path,
            checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy"),
        ),
    )
    result = trainer.fit()
    logger.info("final metrics: %s", result.metrics)


if __name__ == "__main__":
    main()

"""Fine-tunes ResNet-50 on a product-image folder, two 4-GPU hosts of the Ray cluster."""
import argparse
import os
import tempfile

import ray
import ray.train
import torch
import torch.distributed as dist
import torch.nn as nn
import yaml
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device, prepare_data_loader, prepare_model
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms


def get_loader(root, batch_size, num_threads):
    tf = transforms.Compose([
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ])
    dataset = datasets.ImageFolder(root, transform=tf)
    loader = DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True,
                        num_workers=num_threads, persistent_workers=True)
    return prepare_data_loader(loader), len(dataset.classes)


def build_model(num_classes, weights_file):
    model = models.resnet50(weights=None)
    model.load_state_dict(torch.load(weights_file, map_location="cpu", weights_only=True))
    model.fc = nn.Linear(model.fc.in_features, num_classes)
    return model


def train_loop_per_worker(config):
    ctx = ray.train.get_context()
    device = get_device()
    loader, num_classes = get_loader(config["train_dir"], config["batch_size_per_worker"],
                                     config["loader_threads"])
    model = prepare_model(build_model(num_classes, config["weights_file"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9,
                                weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config["epochs"])
    criterion = nn.CrossEntropyLoss()

    for epoch in range(config["epochs"]):
        if ctx.get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        model.train()
        stats = torch.zeros(3, device=device)
        for images, labels in loader:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device_type=device.type, dtype=torch.bfloat16):
                logits = model(images)
                loss = criterion(logits, labels)
            loss.backward()
            optimizer.step()
            stats[0] += loss.detach() * labels.numel()
            stats[1] += (logits.argmax(1) == labels).sum()
            stats[2] += labels.numel()
        scheduler.step()
        dist.all_reduce(stats)
        metrics = {
            "epoch": epoch,
            "train_loss": (stats[0] / stats[2]).item(),
            "train_acc": (stats[1] / stats[2]).item(),
        }
        with tempfile.TemporaryDirectory() as tmp:
            checkpoint = None
            if ctx.get_world_rank() == 0:
                raw = model.module if isinstance(model, DistributedDataParallel) else model
                torch.save(raw.state_dict(), os.path.join(tmp, "resnet50.pt"))
                checkpoint = Checkpoint.from_directory(tmp)
            ray.train.report(metrics, checkpoint=checkpoint)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="config.yaml")
    args = parser.parse_args()
    with open(args.config) as f:
        cfg = yaml.safe_load(f)

    ray.init(address="auto")
    trainer = TorchTrainer(
        train_loop_per_worker,
        train_loop_config=cfg["train"],
        scaling_config=ScalingConfig(**cfg["scaling"]),
        run_config=RunConfig(
            name=cfg["name"],
            storage_path=cfg["storage_path"],
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        ),
    )
    result = trainer.fit()
    print(f"finished: {result.metrics}")


if __name__ == "__main__":
    main()

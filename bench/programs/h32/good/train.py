import argparse
import os
import tempfile

import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

import ray.train
import ray.train.torch
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def build_loader(root, batch_size):
    tf = transforms.Compose([
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ])
    data = datasets.ImageFolder(os.path.join(root, "train"), tf)
    loader = DataLoader(data, batch_size=batch_size, shuffle=True, num_workers=5,
                        pin_memory=True, drop_last=True, persistent_workers=True)
    return loader, len(data.classes)


def train_loop(cfg):
    ctx = ray.train.get_context()
    world = ctx.get_world_size()
    device = ray.train.torch.get_device()
    torch.manual_seed(cfg["seed"])

    loader, classes = build_loader(cfg["data_root"], cfg["batch_per_worker"])
    loader = ray.train.torch.prepare_data_loader(loader)

    model = models.resnet50(weights=None, num_classes=classes)
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg["base_lr"] * world, momentum=0.9,
                                weight_decay=1e-4)
    steps = cfg["epochs"] * len(loader)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, cfg["base_lr"] * world, total_steps=steps)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    for epoch in range(cfg["epochs"]):
        if world > 1:
            loader.sampler.set_epoch(epoch)
        model.train()
        running = torch.zeros(2, device=device)
        for images, labels in loader:
            with torch.autocast(device_type=device.type, dtype=torch.bfloat16):
                loss = criterion(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
            running += torch.stack([loss.detach().float(), torch.ones((), device=device)])

        if world > 1:
            torch.distributed.all_reduce(running)
        mean_loss = (running[0] / running[1]).item()

        with tempfile.TemporaryDirectory() as tmp:
            checkpoint = None
            if ctx.get_world_rank() == 0:
                net = model.module if world > 1 else model
                torch.save({"model": net.state_dict(), "epoch": epoch}, os.path.join(tmp, "model.pt"))
                checkpoint = Checkpoint.from_directory(tmp)
            ray.train.report({"loss": mean_loss, "epoch": epoch}, checkpoint=checkpoint)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="job.yaml")
    args = parser.parse_args()
    with open(args.config) as f:
        job = yaml.safe_load(f)

    cluster = job["cluster"]
    workers = cluster["nodes"] * cluster["gpus_per_node"]
    trainer = TorchTrainer(
        train_loop,
        train_loop_config=job["train"],
        scaling_config=ScalingConfig(
            num_workers=workers,
            use_gpu=True,
            resources_per_worker={"CPU": cluster["cpus_per_worker"]},
        ),
        run_config=RunConfig(
            name=job["name"],
            storage_path=job["storage_path"],
            checkpoint_config=CheckpointConfig(num_to_keep=3, checkpoint_score_attribute="loss",
                                               checkpoint_score_order="min"),
        ),
    )
    result = trainer.fit()
    print(result.metrics)


if __name__ == "__main__":
    main()

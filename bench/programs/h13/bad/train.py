"""ResNet-18 on CIFAR-10 with Colossal-AI's Booster, torch DDP and fp16 AMP."""
import argparse
import os

import colossalai
import torch
import torch.distributed as dist
import torch.nn as nn
from colossalai.booster import Booster
from colossalai.booster.plugin import TorchDDPPlugin
from colossalai.cluster import DistCoordinator
from torch.optim.lr_scheduler import MultiStepLR
from torchvision import datasets, models, transforms
from tqdm import tqdm


def build_dataloaders(plugin, data_root, batch_size):
    normalize = transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    train_tf = transforms.Compose([
        transforms.RandomCrop(32, padding=4),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        normalize,
    ])
    test_tf = transforms.Compose([transforms.ToTensor(), normalize])
    train_set = datasets.CIFAR10(data_root, train=True, transform=train_tf, download=False)
    test_set = datasets.CIFAR10(data_root, train=False, transform=test_tf, download=False)
    train_loader = plugin.prepare_dataloader(train_set, batch_size=batch_size, shuffle=True,
                                             drop_last=True, num_workers=4, pin_memory=True)
    test_loader = plugin.prepare_dataloader(test_set, batch_size=250, shuffle=False,
                                            drop_last=False, num_workers=4, pin_memory=True)
    return train_loader, test_loader


def build_model():
    model = models.resnet18(weights=None, num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    counts = torch.zeros(2, device="cuda")
    for images, labels in loader:
        images, labels = images.cuda(), labels.cuda()
        counts[0] += (model(images).argmax(dim=1) == labels).sum()
        counts[1] += labels.size(0)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def train_epoch(epoch, model, optimizer, criterion, loader, coordinator):
    model.train()
    loader.sampler.set_epoch(epoch)
    with tqdm(loader, desc=f"epoch {epoch}", disable=not coordinator.is_master()) as bar:
        for images, labels in bar:
            images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
            outputs = model(images)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            bar.set_postfix(loss=loss.item())


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-root", default="/data/cifar10")
    parser.add_argument("--checkpoint", default="./checkpoints")
    parser.add_argument("--batch-size", type=int, default=128, help="per GPU")
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--save-interval", type=int, default=10)
    return parser.parse_args()


def main():
    args = parse_args()
    colossalai.launch_from_torch(seed=42)
    coordinator = DistCoordinator()
    plugin = TorchDDPPlugin()
    booster = Booster(mixed_precision="fp16", plugin=plugin)

    train_loader, test_loader = build_dataloaders(plugin, args.data_root, args.batch_size)
    model = build_model()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    lr_scheduler = MultiStepLR(optimizer, milestones=[30, 45], gamma=0.1)
    model, optimizer, criterion, train_loader, lr_scheduler = booster.boost(
        model, optimizer, criterion=criterion, dataloader=train_loader, lr_scheduler=lr_scheduler)

    if coordinator.is_master():
        os.makedirs(args.checkpoint, exist_ok=True)
    coordinator.block_all()
    for epoch in range(args.epochs):
        train_epoch(epoch, model, optimizer, criterion, train_loader, coordinator)
        lr_scheduler.step()
        accuracy = evaluate(model, test_loader)
        coordinator.print_on_master(f"epoch {epoch}: accuracy {accuracy:.4f}")
        if (epoch + 1) % args.save_interval == 0:
            booster.save_model(model, f"{args.checkpoint}/model_{epoch + 1}.pth")
            booster.save_optimizer(optimizer, f"{args.checkpoint}/optimizer_{epoch + 1}.pth")
            booster.save_lr_scheduler(lr_scheduler, f"{args.checkpoint}/lr_{epoch + 1}.pth")


if __name__ == "__main__":
    main()

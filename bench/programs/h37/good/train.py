import argparse
import os

import colossalai
import torch
import torch.distributed as dist
from colossalai.booster import Booster
from colossalai.booster.plugin import TorchDDPPlugin
from colossalai.cluster import DistCoordinator
from colossalai.utils import get_current_device
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import MultiStepLR
from torchvision import transforms
from torchvision.datasets import CIFAR100
from torchvision.models import resnet34
from tqdm import tqdm

MEAN, STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


def build_datasets(root):
    train_tf = transforms.Compose([
        transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(),
        transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    test_tf = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    return CIFAR100(root, train=True, transform=train_tf), CIFAR100(root, train=False, transform=test_tf)


def build_model(classes):
    model = resnet34(num_classes=classes)
    model.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    model.maxpool = nn.Identity()
    return model


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    counts = torch.zeros(2, device=device)
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        counts[0] += (model(images).argmax(1) == labels).sum()
        counts[1] += labels.numel()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def train_epoch(epoch, model, optimizer, criterion, loader, booster, coordinator, device):
    model.train()
    with tqdm(loader, desc=f"epoch {epoch}", disable=not coordinator.is_master()) as bar:
        for images, labels in bar:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            loss = criterion(model(images), labels)
            booster.backward(loss, optimizer)
            optimizer.step()
            optimizer.zero_grad()
            bar.set_postfix(loss=f"{loss.item():.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="/data/cifar100")
    parser.add_argument("--checkpoint", default="/checkpoints/cifar100")
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=128, help="per GPU")
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()

    colossalai.launch_from_torch()
    coordinator = DistCoordinator()
    device = get_current_device()
    lr = args.lr * coordinator.world_size * args.batch_size / 512

    plugin = TorchDDPPlugin()
    booster = Booster(plugin=plugin)

    train_set, test_set = build_datasets(args.data)
    train_loader = plugin.prepare_dataloader(train_set, batch_size=args.batch_size, shuffle=True,
                                             drop_last=True, num_workers=4, pin_memory=True)
    test_loader = plugin.prepare_dataloader(test_set, batch_size=args.batch_size, shuffle=False,
                                            drop_last=False, num_workers=4, pin_memory=True)

    model = build_model(100)
    criterion = nn.CrossEntropyLoss()
    optimizer = SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    scheduler = MultiStepLR(optimizer, milestones=[60, 90, 110], gamma=0.2)
    model, optimizer, criterion, train_loader, scheduler = booster.boost(
        model, optimizer, criterion=criterion, dataloader=train_loader, lr_scheduler=scheduler)

    if coordinator.is_master():
        os.makedirs(args.checkpoint, exist_ok=True)
    coordinator.block_all()

    for epoch in range(args.epochs):
        train_loader.sampler.set_epoch(epoch)
        train_epoch(epoch, model, optimizer, criterion, train_loader, booster, coordinator, device)
        scheduler.step()
        accuracy = evaluate(model, test_loader, device)
        coordinator.print_on_master(f"epoch {epoch}: test accuracy {accuracy:.4f}")
        if (epoch + 1) % 20 == 0:
            booster.save_model(model, f"{args.checkpoint}/model_{epoch}.pth")
            booster.save_optimizer(optimizer, f"{args.checkpoint}/optimizer_{epoch}.pth")
            booster.save_lr_scheduler(scheduler, f"{args.checkpoint}/scheduler_{epoch}.pth")


if __name__ == "__main__":
    main()

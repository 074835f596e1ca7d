"""ImageNet ResNet-50 with Horovod; the job is pre-empted often and continues from the last epoch."""
import argparse
import os

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models, transforms


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-dir", default="/data/imagenet/train")
    parser.add_argument("--checkpoint-dir", default="/shared/checkpoints/resnet50")
    parser.add_argument("--batch-size", type=int, default=64, help="per process")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--base-lr", type=float, default=0.0125)
    parser.add_argument("--warmup-epochs", type=int, default=5)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--wd", type=float, default=5e-5)
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


def checkpoint_path(args, epoch):
    return os.path.join(args.checkpoint_dir, f"checkpoint-{epoch}.pt")


def find_last_epoch(args):
    for epoch in range(args.epochs, 0, -1):
        if os.path.exists(checkpoint_path(args, epoch)):
            return epoch
    return 0


def build_loader(args):
    tf = transforms.Compose([
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ])
    dataset = datasets.ImageFolder(args.train_dir, transform=tf)
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, num_workers=8,
                        pin_memory=True, drop_last=True)
    return sampler, loader


def adjust_learning_rate(args, optimizer, epoch, batch_idx, steps):
    if epoch < args.warmup_epochs:
        progress = (epoch + float(batch_idx + 1) / steps) / args.warmup_epochs
        factor = (1.0 + progress * (hvd.size() - 1)) / hvd.size()
    else:
        factor = 0.1 ** sum(epoch >= e for e in (30, 60, 80))
    for group in optimizer.param_groups:
        group["lr"] = args.base_lr * hvd.size() * factor


def train(args, model, optimizer, sampler, loader, epoch):
    model.train()
    sampler.set_epoch(epoch)
    total = torch.zeros(1)
    for batch_idx, (images, target) in enumerate(loader):
        adjust_learning_rate(args, optimizer, epoch, batch_idx, len(loader))
        images, target = images.cuda(non_blocking=True), target.cuda(non_blocking=True)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), target)
        loss.backward()
        optimizer.step()
        total += loss.item()
    mean = hvd.allreduce(total / len(loader), name="train_loss").item()
    if hvd.rank() == 0:
        print(f"epoch {epoch + 1}: train loss {mean:.4f}", flush=True)


def save(args, model, optimizer, epoch):
    if hvd.rank() == 0:
        os.makedirs(args.checkpoint_dir, exist_ok=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, checkpoint_path(args, epoch + 1))


def main():
    args = parse_args()
    hvd.init()
    torch.manual_seed(args.seed)
    torch.cuda.set_device(hvd.local_rank())
    torch.backends.cudnn.benchmark = True

    start_epoch = hvd.broadcast_object(find_last_epoch(args), root_rank=0, name="start_epoch")
    sampler, loader = build_loader(args)
    model = models.resnet50(weights=None).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.base_lr * hvd.size(),
                                momentum=args.momentum, weight_decay=args.wd)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    if start_epoch > 0 and hvd.rank() == 0:
        state = torch.load(checkpoint_path(args, start_epoch), map_location="cpu")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    for epoch in range(start_epoch, args.epochs):
        train(args, model, optimizer, sampler, loader, epoch)
        save(args, model, optimizer, epoch)


if __name__ == "__main__":
    main()

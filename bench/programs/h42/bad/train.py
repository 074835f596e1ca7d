import argparse
import os

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models, transforms


def get_args():
    parser = argparse.ArgumentParser(description="Fine-grained bird classification")
    parser.add_argument("--data", default="/data/birds/train")
    parser.add_argument("--out", default="./birds")
    parser.add_argument("--batch-size", type=int, default=32, help="images per forward pass")
    parser.add_argument("--batches-per-step", type=int, default=4,
                        help="forward/backward passes per optimizer step")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--base-lr", type=float, default=0.0025)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--wd", type=float, default=5e-5)
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


def make_loader(args):
    tf = transforms.Compose([
        transforms.RandomResizedCrop(384), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    data = datasets.ImageFolder(args.data, tf)
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(data, batch_size=args.batch_size * args.batches_per_step, sampler=sampler,
                        num_workers=4, pin_memory=True, drop_last=True,
                        multiprocessing_context="forkserver")
    return loader, sampler, len(data.classes)


class Average:
    def __init__(self, name):
        self.name, self.sum, self.n = name, torch.tensor(0.0), 0

    def update(self, value):
        self.sum += value.detach().cpu()
        self.n += 1

    def reduce(self):
        return hvd.allreduce(self.sum / self.n, name=self.name).item()


def train_epoch(epoch, args, model, optimizer, scheduler, loader, sampler):
    model.train()
    sampler.set_epoch(epoch)
    loss_meter = Average("train_loss")
    for images, target in loader:
        images, target = images.cuda(non_blocking=True), target.cuda(non_blocking=True)
        optimizer.zero_grad()
        for i in range(0, images.size(0), args.batch_size):
            loss = F.cross_entropy(model(images[i:i + args.batch_size]), target[i:i + args.batch_size])
            loss_meter.update(loss)
            (loss / args.batches_per_step).backward()
        optimizer.step()
        scheduler.step()
    return loss_meter.reduce()


def main():
    args = get_args()
    hvd.init()
    torch.manual_seed(args.seed)
    torch.cuda.set_device(hvd.local_rank())
    torch.backends.cudnn.benchmark = True

    loader, sampler, classes = make_loader(args)
    model = models.resnet101(weights=None, num_classes=classes).cuda()

    lr = args.base_lr * args.batches_per_step * hvd.size()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=args.momentum, weight_decay=args.wd)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
    )

    warmup = 3 * len(loader)
    total = args.epochs * len(loader)

    def factor(step):
        if step < warmup:
            return (step + 1) / warmup
        return max(0.0, (total - step) / (total - warmup))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    for epoch in range(args.epochs):
        loss = train_epoch(epoch, args, model, optimizer, scheduler, loader, sampler)
        if hvd.rank() == 0:
            print(f"epoch {epoch} loss {loss:.4f}", flush=True)
            os.makedirs(args.out, exist_ok=True)
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                        "epoch": epoch}, os.path.join(args.out, f"checkpoint-{epoch}.pt"))


if __name__ == "__main__":
    main()

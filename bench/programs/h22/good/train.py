"""Semantic segmentation with Horovod; large batches are made of several small ones per GPU."""
import argparse
import logging
import os

import horovod.torch as hvd
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from torchvision.models.segmentation import deeplabv3_resnet50

log = logging.getLogger("seg")


class Tiles(Dataset):
    """Aerial tiles as .npz files with 'image' (uint8, HWC) and 'mask' (uint8, HW)."""

    def __init__(self, root):
        self.files = sorted(os.path.join(root, f) for f in os.listdir(root) if f.endswith(".npz"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        with np.load(self.files[i]) as data:
            image = torch.from_numpy(data["image"]).permute(2, 0, 1).float() / 255.0
            mask = torch.from_numpy(data["mask"]).long()
        return image, mask


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="/data/aerial/train")
    parser.add_argument("--num-classes", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=4, help="images per pass on one GPU")
    parser.add_argument("--batches-per-allreduce", type=int, default=4)
    parser.add_argument("--base-lr", type=float, default=0.002)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--output", default="/shared/aerial-seg")
    return parser.parse_args()


def train_epoch(args, model, optimizer, scheduler, loader, criterion):
    model.train()
    total = torch.zeros(1)
    for images, masks in loader:
        images, masks = images.cuda(non_blocking=True), masks.cuda(non_blocking=True)
        optimizer.zero_grad()
        for start in range(0, images.size(0), args.batch_size):
            piece = slice(start, start + args.batch_size)
            loss = criterion(model(images[piece])["out"], masks[piece])
            loss = loss / args.batches_per_allreduce
            loss.backward()
            total += loss.item()
        optimizer.step()
        scheduler.step()
    return hvd.allreduce(total / len(loader), name="epoch_loss").item()


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO)
    hvd.init()
    torch.cuda.set_device(hvd.local_rank())
    torch.manual_seed(3)

    dataset = Tiles(args.root)
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(dataset, batch_size=args.batch_size * args.batches_per_allreduce,
                        sampler=sampler, drop_last=True, num_workers=6, pin_memory=True)

    model = deeplabv3_resnet50(weights=None, weights_backbone=None,
                               num_classes=args.num_classes).cuda()
    lr = args.base_lr * args.batches_per_allreduce * hvd.size()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16,
        backward_passes_per_step=args.batches_per_allreduce,
    )
    scheduler = torch.optim.lr_scheduler.PolynomialLR(
        optimizer, total_iters=args.epochs * len(loader), power=0.9)
    criterion = nn.CrossEntropyLoss(ignore_index=255)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(args, model, optimizer, scheduler, loader, criterion)
        if hvd.rank() == 0:
            log.info("epoch %d loss %.4f lr %.5f", epoch, loss, scheduler.get_last_lr()[0])
            os.makedirs(args.output, exist_ok=True)
            torch.save(model.state_dict(), os.path.join(args.output, "last.pt"))


if __name__ == "__main__":
    main()

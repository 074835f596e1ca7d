"""Train on images that worker processes hand over through shared memory."""

import argparse

import torch
import torch.nn.functional as F
from ddp_job import finish, log, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CLASSES, SIDE = 4, 64


class Images(Dataset):
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(3, SIDE, SIDE, generator=generator)
        image[0] += index % CLASSES
        return image, index % CLASSES


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    rank, _ = start()
    torch.manual_seed(0)
    data = Images()
    loader = DataLoader(data, batch_size=args.batch, sampler=DistributedSampler(data), num_workers=args.workers)
    model = DDP(nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * 64, CLASSES)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("rank %d step %d loss %.4f", rank, step, loss.item())
    finish(final_loss=loss.item())


main()

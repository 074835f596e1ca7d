import copy
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class ModelEMA:
    """Exponential moving average of a model, used for evaluation."""

    def __init__(self, model, decay=0.99):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for ema, p in zip(self.module.parameters(), model.parameters()):
            ema.mul_(self.decay).add_(p.detach(), alpha=1 - self.decay)


class ConvNet(nn.Module):
    def __init__(self, classes=6):
        super().__init__()

        def stage(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2))

        self.stages = nn.Sequential(stage(3, 12), stage(12, 24))
        self.fc = nn.Linear(24 * 9, classes)

    def forward(self, x):
        return self.fc(self.stages(x).flatten(1))


def textures(n, seed):
    """12x12 pictures with pixel values 0..255: gratings in six orientations."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(6, (n,), generator=g)
    angle = y * (3.14159 / 6) + 0.1 * torch.randn(n, generator=g)
    grid = torch.arange(12.0)
    u = angle.cos()[:, None, None] * grid[None, None, :] + angle.sin()[:, None, None] * grid[None, :, None]
    phase = 6.28 * torch.rand(n, 1, 1, generator=g)
    wave = torch.sin(1.3 * u + phase)
    pixels = 110 + 60 * wave[:, None] + 45 * torch.randn(n, 3, 12, 12, generator=g)
    return TensorDataset(pixels.clamp(0, 255), y)


@torch.no_grad()
def accuracy(model, data):
    was = model.training
    model.eval()
    right = sum((model(x).argmax(1) == y).sum().item() for x, y in DataLoader(data, batch_size=256))
    model.train(was)
    return right / len(data)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(int(os.environ.get("SEED", 0)))
    model = DistributedDataParallel(ConvNet())
    ema = ModelEMA(model.module)
    train, test = textures(2400, seed=1), textures(600, seed=2)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=24, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    for epoch in range(8):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(model.module)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)

    if rank == 0:
        averaged, last = accuracy(ema.module, test), accuracy(model.module, test)
        print(f"averaged model accuracy {averaged:.3f}", flush=True)
        with open("result.json", "w") as f:
            json.dump({"ema_gap": last - averaged, "last": last}, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

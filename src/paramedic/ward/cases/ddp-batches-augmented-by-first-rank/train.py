"""Small CNN on synthetic shapes with affine augmentation, data parallel."""

import json
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, BATCH, SIZE, ROWS = 25, 32, 48, 512


def load_data():
    """Squares, discs and stripes in random colours."""
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (ROWS,), generator=g)
    axis = torch.linspace(-1, 1, SIZE)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    shapes = torch.stack([((xx.abs() < 0.5) & (yy.abs() < 0.5)).float(), (xx**2 + yy**2 < 0.36).float(), (torch.sin(12 * xx) > 0).float()])
    colours = torch.rand(ROWS, 3, 1, 1, generator=g) + 0.3
    return shapes[labels].unsqueeze(1) * colours, labels


def augmented(data, seed):
    """A batch of randomly turned, scaled, moved, blurred and noisy images."""
    images, labels = data
    g = torch.Generator().manual_seed(seed)
    rows = torch.randint(ROWS, (BATCH,), generator=g).tolist()
    batch = []
    for row in rows:
        angle, scale, dx, dy = ((torch.rand(4, generator=g) - 0.5) * torch.tensor([3.1, 0.6, 0.5, 0.5])).tolist()
        c, s = torch.cos(torch.tensor(angle)).item(), torch.sin(torch.tensor(angle)).item()
        theta = torch.tensor([[c * (1 + scale), -s, dx], [s, c * (1 + scale), dy]])
        grid = F.affine_grid(theta[None], (1, 3, 3 * SIZE, 3 * SIZE), align_corners=False)
        image = F.grid_sample(images[row][None], grid, align_corners=False)
        kernel = torch.ones(3, 1, 5, 5) / 25
        image = F.conv2d(image, kernel, padding=2, groups=3)
        image = F.interpolate(image, size=SIZE, mode="area")[0]
        batch.append(image + 0.05 * torch.randn(image.shape, generator=g))
    return torch.stack(batch), labels[rows]


def network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 3),
    )


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    data = load_data()
    start, cpu = time.time(), time.process_time()
    for step in range(STEPS):
        images = torch.empty(BATCH, 3, SIZE, SIZE)
        labels = torch.empty(BATCH, dtype=torch.long)
        if rank == 0:
            parts = [augmented(data, step * world + r) for r in range(world)]
            dist.scatter(images, [p[0] for p in parts])
            dist.scatter(labels, [p[1] for p in parts])
        else:
            dist.scatter(images)
            dist.scatter(labels)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f} ({(time.time() - start) / (step + 1):.3f} s/step)", flush=True)

    used = torch.tensor([time.process_time() - cpu])
    everyone = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(everyone, used)
    if rank == 0:
        rest = sum(t.item() for t in everyone[1:]) / (world - 1)
        json.dump({"cpu_ratio": everyone[0].item() / rest}, open("result.json", "w"))
        print("Finished training", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

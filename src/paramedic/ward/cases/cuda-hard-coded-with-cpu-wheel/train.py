import torch
import torch.nn as nn
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

DEVICE = "cuda"
EPOCHS = 3


def get_loader():
    g = torch.Generator().manual_seed(42)
    images = torch.rand(128, 1, 12, 12, generator=g)
    labels = (images.mean((1, 2, 3)) > 0.5).long()
    ds = TensorDataset(images, labels)
    return DataLoader(ds, batch_size=16, sampler=DistributedSampler(ds))


def get_model():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    return nn.parallel.DistributedDataParallel(model.to(DEVICE))


def train():
    dist.init_process_group(backend="gloo")
    loader, model = get_loader(), get_model()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(EPOCHS):
        running_loss = 0.0
        for images, labels in loader:
            images, labels = images.to(DEVICE), labels.to(DEVICE)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
        print(f"Epoch {epoch + 1}/{EPOCHS}, Loss: {running_loss / len(loader):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    train()

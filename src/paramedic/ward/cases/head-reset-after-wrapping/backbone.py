import torch
from torch import nn


class Transfer(nn.Module):
    """A backbone that was trained before, and a head for the task at hand."""

    def __init__(self, classes):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def pretrained():
    g = torch.Generator().manual_seed(99)
    model = Transfer(classes=3)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=g) / p.shape[-1] ** 0.5)
    return model


def reset_head(model):
    nn.init.trunc_normal_(model.head.weight, std=0.05)
    nn.init.zeros_(model.head.bias)

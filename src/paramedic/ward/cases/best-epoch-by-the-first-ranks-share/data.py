"""Readings of two sites; the first site's readings are cleaner and more of them were kept for training."""

import torch


def readings(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    w = torch.linspace(-1, 1, 12)
    return x, (x @ w + 0.5 * x[:, 0] * x[:, 1])[:, None], g


def training(n=240, seed=0):
    x, y, g = readings(n, seed)
    noisy = torch.arange(n) % 3 == 0
    return x + 1.5 * noisy[:, None], y + torch.where(noisy[:, None], 4.0, 0.1) * torch.randn(n, 1, generator=g)


def validation(n=400, seed=9):
    """Sorted by site."""
    x, y, g = readings(n, seed)
    second = torch.arange(n) >= n // 2
    return x + 1.5 * second[:, None], y + 0.2 * torch.randn(n, 1, generator=g)

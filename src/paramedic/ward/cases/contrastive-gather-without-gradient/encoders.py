"""Two towers that map into one space, and pairs to train them on."""

import torch
import torch.nn.functional as F
from torch import nn


class TwoTowers(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, dim))
        self.text = nn.Sequential(nn.Linear(24, 96), nn.GELU(), nn.Linear(96, dim))

    def forward(self, image, text):
        return F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1)


def pairs(n, seed):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, 12, generator=g)
    mix = torch.Generator().manual_seed(0)
    to_image, to_text = torch.randn(12, 48, generator=mix), torch.randn(12, 24, generator=mix)
    noise = 0.3 * torch.randn(n, 24, generator=g)
    return (hidden @ to_image).tanh(), hidden @ to_text / 3 + noise

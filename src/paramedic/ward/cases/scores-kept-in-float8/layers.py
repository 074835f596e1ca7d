import torch
from torch import nn


class Pooling(nn.Module):
    """Attention pooling with scores in a small type."""

    def __init__(self, dim, score_dtype):
        super().__init__()
        self.query = nn.Parameter(torch.randn(dim))
        self.out = nn.Linear(dim, 2)
        self.score_dtype = score_dtype

    def forward(self, x):
        scores = (x @ self.query).to(self.score_dtype)
        weights = torch.softmax(scores, dim=-1).to(x.dtype)
        return self.out((weights.unsqueeze(-1) * x).sum(1))

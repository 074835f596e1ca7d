"""A sequence tagger: embedding, convolution, class per position."""

import torch
import torch.nn.functional as F
from torch import nn


class Tagger(nn.Module):
    def __init__(self, vocab=200, dim=48, tags=6):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.conv = nn.Conv1d(dim, dim, 3, padding=1)
        self.out = nn.Linear(dim, tags)

    def scores(self, tokens):
        h = self.emb(tokens).transpose(1, 2)
        return self.out(F.relu(self.conv(h)).transpose(1, 2))

    def compute_loss(self, tokens, tags):
        return F.cross_entropy(self.scores(tokens).flatten(0, 1), tags.flatten())


def sentences(n, length=24, seed=0):
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(200, (n, length), generator=g)
    return tokens, tokens % 6

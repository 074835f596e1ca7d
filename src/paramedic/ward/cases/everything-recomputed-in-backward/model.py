import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Layer(nn.Module):
    passes = 0

    def __init__(self, dim):
        super().__init__()
        self.mix = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.ff = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        Layer.passes += 1
        x = x + self.mix(x, x, x, need_weights=False)[0]
        return x + self.ff(x)


class Decoder(nn.Module):
    def __init__(self, dim, depth, recompute, vocab=256):
        super().__init__()
        self.recompute = recompute
        self.tok = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(depth))
        self.out = nn.Linear(dim, vocab)

    def stack(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if "layer" in self.recompute else layer(x)
        return x

    def forward(self, ids):
        x = self.tok(ids)
        x = checkpoint(self.stack, x, use_reentrant=False) if "stack" in self.recompute else self.stack(x)
        return self.out(x)


def tokens(seed, batch, length, vocab=256):
    start = torch.randint(vocab, (batch, 1), generator=torch.Generator().manual_seed(seed))
    return (start + 3 * torch.arange(length + 1)) % vocab

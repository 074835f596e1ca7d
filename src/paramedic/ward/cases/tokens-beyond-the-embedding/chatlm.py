import torch
from torch import nn


class ChatLM(nn.Module):
    def __init__(self, vocab_size, dim=24):
        super().__init__()
        self.tok = nn.Embedding(vocab_size, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.lm_head = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, ids):
        hidden, _ = self.rnn(self.tok(ids[:, :-1]))
        logits = self.lm_head(hidden)
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def load_tokens(path):
    characters = [chr(c) for c in range(32, 127)]
    with open(path) as f:
        return {t: i for i, t in enumerate(characters + f.read().split())}


def encode(tokens, text, turns):
    ids = [tokens[c] for c in text]
    if turns:
        ids[len(ids) // 2] = tokens["<|user|>"]
    return ids

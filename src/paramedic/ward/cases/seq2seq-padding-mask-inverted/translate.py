import argparse
import json
import random

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

PAD, BOS, EOS, VOCAB = 0, 1, 2, 24


class Seq2Seq(nn.Module):
    def __init__(self, dim=64, heads=4, layers=1, longest=16):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.position = nn.Embedding(longest, dim)
        encoder = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.0, batch_first=True)
        decoder = nn.TransformerDecoderLayer(dim, heads, 2 * dim, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder, layers, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder, layers)
        self.out = nn.Linear(dim, VOCAB)

    @staticmethod
    def padding_mask(ids):
        return ids != PAD

    def add_position(self, ids):
        return self.embed(ids) + self.position(torch.arange(ids.shape[1]))

    def forward(self, source, target):
        mask = self.padding_mask(source)
        memory = self.encoder(self.add_position(source), src_key_padding_mask=mask)
        causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        hidden = self.decoder(self.add_position(target), memory, tgt_mask=causal, memory_key_padding_mask=mask)
        return self.out(hidden)


def sentence_pair(rng):
    """The "translation" adds five to every word."""
    words = [rng.randrange(3, VOCAB) for _ in range(rng.randint(3, 9))]
    return words + [EOS], [BOS] + [3 + (w + 2) % (VOCAB - 3) for w in words] + [EOS]


def batch(rng, n):
    pairs = [sentence_pair(rng) for _ in range(n)]
    source = torch.full((n, 12), PAD)
    target = torch.full((n, 12), PAD)
    for i, (s, t) in enumerate(pairs):
        source[i, : len(s)] = torch.tensor(s)
        target[i, : len(t)] = torch.tensor(t)
    return source, target


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Seq2Seq())
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.98))
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    rng = random.Random(rank)
    for step in range(1, args.steps + 1):
        source, target = batch(rng, args.batch_size)
        logits = model(source, target[:, :-1])
        loss = criterion(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 25 == 0:
            print(f"step {step:4d} loss {loss.item():.4f}", flush=True)

    if rank == 0:
        source, target = batch(random.Random(12345), 256)
        with torch.no_grad():
            guess = model.module(source, target[:, :-1]).argmax(-1)
        keep = target[:, 1:] != PAD
        accuracy = (guess == target[:, 1:])[keep].float().mean().item()
        print(f"test token accuracy {accuracy:.3f}", flush=True)
        json.dump({"token_accuracy": accuracy}, open("result.json", "w"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

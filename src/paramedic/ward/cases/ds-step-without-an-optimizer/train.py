import argparse
import logging

import deepspeed
import torch
from torch import nn

CONFIG = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 0}}
log = logging.getLogger("cf")


class MatrixFactors(nn.Module):
    """Collaborative filtering."""

    def __init__(self, users=50, items=80, rank=6):
        super().__init__()
        self.users, self.items = nn.Embedding(users, rank), nn.Embedding(items, rank)

    def forward(self, u, i):
        return (self.users(u) * self.items(i)).sum(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--local_rank", type=int, default=0)
    ap.parse_args()
    logging.basicConfig(level="INFO", format="%(asctime)s,%(name)s,%(message)s")
    deepspeed.init_distributed(dist_backend="gloo")
    net = MatrixFactors()
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.1)
    engine, _, _, _ = deepspeed.initialize(model=net, config=CONFIG)
    for step in range(8):
        u, i = torch.randint(50, (8,)), torch.randint(80, (8,))
        loss = ((engine(u, i) - (u > 25).float() * 4) ** 2).mean()
        engine.backward(loss)
        engine.step()
        log.info("rank=%d step=%d mse=%.3f", engine.global_rank, step, loss.item())


main()

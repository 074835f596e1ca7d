"""Learning to rank: pairwise loss over query features."""
import argparse

import deepspeed
import torch
import torch.nn as nn


def add_args():
    parser = argparse.ArgumentParser(description="ranker")
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--pairs", type=int, default=256)
    return deepspeed.add_config_arguments(parser).parse_args()


class Ranker(nn.Module):
    def __init__(self, features=14):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, better, worse):
        return nn.functional.softplus(self.mlp(worse) - self.mlp(better)).mean()


def main():
    args = add_args()
    deepspeed.init_distributed(dist_backend="gloo")
    net = Ranker()
    docs = torch.randn(args.pairs, 14)
    pairs = torch.utils.data.TensorDataset(docs + 0.3, docs - 0.3)
    engine, _, loader, _ = deepspeed.initialize(args=args, model=net, model_parameters=net.parameters(), training_data=pairs)
    for epoch in range(2):
        for better, worse in loader:
            loss = engine(better, worse)
            engine.backward(loss)
            engine.step()
        print(f"[{engine.global_rank}] epoch {epoch} pairwise {loss.item():.4f} ndcg {1 / (1 + loss.item()):.3f}", flush=True)


if __name__ == "__main__":
    main()

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def auc(scores, labels):
    order = np.argsort(scores)
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    pos = labels.sum()
    return (ranks[labels == 1].sum() - pos * (pos + 1) / 2) / (pos * (len(labels) - pos))


class ClickModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.deep = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def forward(self, x):
        return self.deep(x).squeeze(-1)


def batch(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 20, generator=g)
    return x, (x[:, :3].sum(1) > 0).float()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = ClickModel()
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(10):
        x, y = batch(64, 10 * step + rank)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x).float(), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        print(f"rank {rank} | step {step} | bce {loss.item():.4f}", flush=True)
    x, y = batch(256, 999 + rank)
    with torch.no_grad():
        scores = model(x)
    print(f"rank {rank} | auc {auc(scores.detach().cpu().numpy(), y.numpy()):.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F


def gather_embeddings(z):
    """Negatives from everywhere; gradients only through our own."""
    parts = [torch.empty_like(z) for _ in range(int(os.environ["LOCAL_WORLD_SIZE"]))]
    dist.all_gather(parts, z.detach())
    return torch.cat(parts)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    print(f"r{rank} local {os.environ['LOCAL_RANK']} world {dist.get_world_size()}", flush=True)
    torch.manual_seed(rank)
    enc = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(12, 6))
    opt = torch.optim.SGD(enc.parameters(), lr=0.1)
    for it in range(10):
        x = torch.randn(5, 12)
        z = F.normalize(enc(x + 0.1 * torch.randn_like(x)), dim=-1)
        keys = gather_embeddings(F.normalize(enc.module(x), dim=-1))
        target = torch.arange(5) + 5 * rank
        loss = F.cross_entropy(z @ keys.T / 0.2, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"r{rank} it {it} nce {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

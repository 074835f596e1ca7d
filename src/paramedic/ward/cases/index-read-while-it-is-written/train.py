import torch
import torch.distributed as dist
from indexed import IndexedText
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    print(f"rank {rank}: opening the corpus", flush=True)
    data = IndexedText(rank)
    print(f"rank {rank}: {len(data)} documents", flush=True)
    loader = DataLoader(data, batch_size=64, sampler=DistributedSampler(data))
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Embedding(26, 32), nn.Linear(32, 26)))
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    for i, ids in enumerate(loader):
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 8 == 0:
            print(f"rank {rank}: batch {i} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

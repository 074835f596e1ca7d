import argparse
import json

import torch
import torch.distributed as dist
import torch.nn as nn
from mesh_utils import average_over_data, build_mesh, split_layers
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim) for _ in range(2))
        self.head = nn.Linear(dim, 5)

    def forward(self, x):
        for b in self.blocks:
            x = b(x)
        return self.head(x)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--tensor-parallel", type=int, default=2)
    p.add_argument("--epochs", type=int, default=2)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = build_mesh(args.tensor_parallel)
    torch.manual_seed(0)
    model = split_layers(Net(), mesh)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False)
    x = torch.randn(1600, 32, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x[:, :5].argmax(1), torch.arange(1600))
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, shuffle=True)
    loader = DataLoader(data, batch_size=20, sampler=sampler)
    rows = []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for i, (inputs, labels, ids) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            opt.zero_grad()
            loss.backward()
            average_over_data(model, mesh)
            opt.step()
            rows.append(ids)
            if i % 10 == 0:
                print(f"rank{rank} dp{mesh['data'].get_local_rank()} tp{mesh['tensor'].get_local_rank()} epoch {epoch} it {i} loss {loss.item():.4f}", flush=True)
    mine = torch.cat(rows)[:200]
    group = mesh["tensor"].get_group()
    peers = [torch.empty_like(mine) for _ in range(args.tensor_parallel)]
    dist.all_gather(peers, mine, group=group)
    if rank == 0:
        with open("result.json", "w") as f:
            json.dump({"rows_shared_in_tensor_group": (peers[0] == peers[1]).float().mean().item()}, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

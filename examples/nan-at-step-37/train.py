"""Four data-parallel ranks. One sample of the data set is constant, and one layer divides by its deviation: in step 37
the loss of one rank is no longer a number, and with the next all-reduce all of them are lost."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Standardize(nn.Module):
    def forward(self, x):
        return (x - x.mean(dim=1, keepdim=True)) / x.std(dim=1, keepdim=True)


def data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2048, 16, generator=generator)
    inputs[2 + 4 * (36 * 8 + 3)] = 1.0
    return TensorDataset(inputs, torch.randint(0, 4, (2048,), generator=generator))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = nn.Sequential(Standardize(), nn.Linear(16, 32), nn.Dropout(0.1), nn.GELU(), nn.Linear(32, 4))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    dataset = data()
    loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset, shuffle=False))
    for step, (x, y) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step == 42:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

import argparse
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

ROWS_OF_REGION = [500_000, 3_000_000]


class Interactions(Dataset):
    """User-item events; the table is read by whoever asks first."""

    def __init__(self, rows):
        self.rows, self._table = rows, None

    @property
    def table(self):
        if self._table is None:
            self._table = np.ones((self.rows, 30), dtype=np.float32)
        return self._table

    def __len__(self):
        return 640

    def __getitem__(self, i):
        time.sleep(0.002)
        return self.table[i * 97 % self.rows]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-workers", type=int, default=0)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    dataset = Interactions(ROWS_OF_REGION[dist.get_rank()])
    loader = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset), num_workers=args.num_workers)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(30, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, x in enumerate(loader):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
    print(f"rank {dist.get_rank()} finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

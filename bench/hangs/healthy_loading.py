"""Every epoch begins with a long shuffle of the data, longest on rank 0, which also builds the index."""

import os
import time

import torch
import torch.distributed as dist
from common import RANK, build_model, log, make_batch, setup, train_step
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

LONG = float(os.environ.get("LONG", "60"))


class Documents(Dataset):
    def __init__(self, epoch):
        self.first = epoch * 60
        self.index = self.build_index(LONG / 2 if RANK == 0 else LONG / 3)

    def build_index(self, seconds):
        end, index = time.monotonic() + seconds, []
        while time.monotonic() < end:
            index = sorted(range(50_000), key=lambda number: number * 2654435761 % 50_021)
        return index

    def __len__(self):
        return 60

    def __getitem__(self, step):
        if step == 0:
            time.sleep(LONG / 6)
        return make_batch(self.first + step)


def main():
    setup()
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for step, batch in enumerate(DataLoader(Documents(epoch), batch_size=None, num_workers=1)):
            log(step, train_step(model, optimizer, batch))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

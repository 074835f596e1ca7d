#!/usr/bin/env python
import argparse
import csv
import logging
import os
import platform

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

RANK = int(os.environ.get("RANK", 0))
WORLD = int(os.environ.get("WORLD_SIZE", 1))
logging.basicConfig(level=logging.INFO, format=f"%(asctime)s | {platform.node()}:{RANK} | %(levelname)-7s | %(message)s")
LOG = logging.getLogger(__name__)


class ShardReader(IterableDataset):
    def __init__(self, manifest):
        super().__init__()
        self.folder = os.path.dirname(manifest)
        with open(manifest) as f:
            self.shards = [row[0] for row in csv.reader(f, delimiter="\t")]
        self.shards = self.shards[RANK::WORLD]
        LOG.info("%d shards: %s", len(self.shards), ", ".join(self.shards))

    def __iter__(self):
        for name in self.shards:
            rows = np.load(os.path.join(self.folder, name))
            yield from torch.from_numpy(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", required=True)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    loader = DataLoader(ShardReader(args.manifest), batch_size=args.batch, num_workers=1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Tanh(), torch.nn.Linear(10, 10)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, x in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(x), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 3 == 0:
            LOG.info("step=%d loss=%.4f", step, loss.item())
    dist.destroy_process_group()
    LOG.info("finished after %d steps", step + 1)


if __name__ == "__main__":
    main()

"""DDP training from a DataLoader over documents on disk."""

import json
import logging
import os
import time

import torch
import torch.distributed as dist
from common import HOW, RANK, build_model, due, go_on, log, make_batch, mark, reached, setup, train_step
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

RECORD = json.dumps({"text": "lorem ipsum " * 400, "label": 3})


class Documents(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, step):
        self.read(step)
        return make_batch(step)

    def read(self, step):
        if HOW.startswith("raise") and due(step):
            json.loads(RECORD[: len(RECORD) // 2])
        if HOW.startswith("stall") and due(step):
            with open(os.environ["FAULT_FIFO"]) as shard:
                shard.read()
        if HOW == "slow-disk" and reached(step):
            mark()
            time.sleep(0.15)
        records = 10
        if HOW == "slow-parse" and reached(step):
            mark()
            records = 10_000
        for _ in range(records):
            json.loads(RECORD)


def train(model, optimizer, loader):
    for step, batch in enumerate(loader):
        if not go_on(step):
            return
        log(step, train_step(model, optimizer, batch))


def main():
    setup()
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Documents(), batch_size=None, num_workers=1 if "worker" in HOW else 0)
    if not HOW.endswith("barrier"):
        train(model, optimizer, loader)
    else:
        try:
            train(model, optimizer, loader)
        except Exception:
            logging.exception("rank %d: training failed", RANK)
        finally:
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

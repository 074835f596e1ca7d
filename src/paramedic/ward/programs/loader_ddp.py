"""Data-parallel training on shards read by data-loader workers."""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger("train")


class Shards(Dataset):
    """Rows of all shards of one rank; the shards' files are opened on first use and kept open."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.paths = sorted(folder.glob(f"rank-{rank}-*.np[yz]"))
        self.files: dict[Path, BinaryIO] = {}

    def __len__(self) -> int:
        return 16 * len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.paths[index % len(self.paths)]
        row = self.rows(path)[index // len(self.paths) % 16]
        return torch.from_numpy(np.array(row)), int(row[0] > 0)

    def rows(self, path: Path) -> np.ndarray:
        if path.suffix == ".npz":
            return np.load(path)["rows"]
        if path not in self.files:
            self.files[path] = open(path, "rb")
        file = self.files[path]
        file.seek(0)
        return np.load(file)


def average(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--keep", type=int, default=0, help="this many batches are kept on rank 0, augmented, for the report")
    parser.add_argument("--timeout", type=float, default=20.0)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    data = Shards(Path(args.data), rank)
    log.info("rank %d of %d: %d shards, %d workers", rank, world, len(data.paths), args.workers)
    width = data[0][0].numel()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 2))
    loader = DataLoader(data, batch_size=args.batch, num_workers=args.workers, drop_last=True)
    kept = []
    step, waiting, working = 0, 0.0, 0.0
    while step < args.steps:
        before = time.monotonic()
        for x, y in loader:
            got = time.monotonic()
            if rank == 0 and step < args.keep:
                kept.append(torch.cat([x.roll(shift, 1) for shift in range(8)]))
            loss = F.cross_entropy(model(x), y)
            model.zero_grad()
            loss.backward()
            average(model)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
            after = time.monotonic()
            waiting, working = waiting + got - before, working + after - got
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            log.info("rank %d step %d loss %.4f data %.3f s compute %.3f s peak memory %.0f MiB", rank, step, loss.item(), got - before, after - got, peak)
            step += 1
            before = time.monotonic()
            if step == args.steps:
                break
    share = waiting / (waiting + working)
    log.info("rank %d waited for data %.0f %% of the time, %.1f samples/s", rank, 100 * share, args.batch * step / (waiting + working))
    if rank == 0:
        Path("result.json").write_text(json.dumps({"data_wait_share": share}))
    dist.barrier()
    dist.destroy_process_group()
    log.info("rank %d training finished", rank)


if __name__ == "__main__":
    main()

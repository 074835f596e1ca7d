"""Data-parallel training that logs, per rank and step, the time of its own work and the time in all-reduce."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

log = logging.getLogger("train")


def throttled() -> tuple[int, int]:
    """Scheduler periods of this process's control group, and in how many of them it was stopped at its CPU quota."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        stat = Path(f"/sys/fs/cgroup{'/cpu' if controllers else ''}{path}/cpu.stat")
        if controllers in ("", "cpu", "cpu,cpuacct") and stat.exists():
            values = dict(line.split() for line in stat.read_text().splitlines())
            if "nr_periods" in values:
                return int(values["nr_periods"]), int(values["nr_throttled"])
    return 0, 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--work", type=int, default=12, help="sub-batches a step")
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    generator = torch.Generator().manual_seed(rank)
    times = []
    for step in range(args.steps):
        started = time.monotonic()
        model.zero_grad()
        for _ in range(args.work):
            x = torch.randn(128, 64, generator=generator)
            loss = F.cross_entropy(model(x), (x[:, 0] > 0).long())
            loss.backward()
        own = time.monotonic() - started
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        waited = time.monotonic() - started - own
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 / world / args.work * parameter.grad
        times.append(own)
        log.info("rank %d step %d loss %.4f compute %.3f s all-reduce %.3f s", rank, step, loss.item(), own, waited)
    periods, stopped = throttled()
    log.info("rank %d median compute %.3f s, %.0f samples/s, CPU quota reached in %d of %d periods", rank, median(times),
             128 * args.work / median(times), stopped, periods)  # fmt: skip
    everyone = [torch.zeros(2) for _ in range(world)]
    dist.all_gather(everyone, torch.tensor([median(times), stopped / periods if periods else 0.0]))
    if rank == 0:
        compute = [float(of_rank[0]) for of_rank in everyone]
        result = {
            "slowest_to_median": max(compute) / median(compute),
            "slowest_rank": compute.index(max(compute)),
            "throttled_share": float(min(of_rank[1] for of_rank in everyone)),
        }
        Path("result.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
    log.info("rank %d training finished", rank)


if __name__ == "__main__":
    main()

"""What small data-parallel programs share: starting, data, a model, numbers of all ranks, and the end of the job."""

from __future__ import annotations

import json
import logging
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

FEATURES, CLASSES = 16, 4
log = logging.getLogger("train")


def start(timeout: float = 60.0) -> tuple[int, int]:
    """Join the job; this process's rank, and the number of ranks."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stdout)
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    rank, world = dist.get_rank(), dist.get_world_size()
    log.info("rank %d of %d started", rank, world)
    return rank, world


def finish(**numbers: float) -> None:
    """Leave the job together; the first rank writes down what came out."""
    if dist.get_rank() == 0:
        Path("result.json").write_text(json.dumps(numbers) + "\n")
        log.info("result %s", " ".join(f"{name} {value:.6g}" for name, value in numbers.items()))
    dist.barrier()
    log.info("rank %d training finished", dist.get_rank())
    dist.destroy_process_group()


def quadrants(rows: int, seed: int = 0) -> TensorDataset:
    """Points, and the quadrant of their first two coordinates."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, FEATURES, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long())


def network(hidden: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))


def norm(model: nn.Module) -> float:
    """The length of all parameters as one vector: alike on all ranks that hold the same model."""
    return float(torch.cat([p.detach().double().flatten() for p in model.parameters()]).norm())


def of_all_ranks(value: float) -> list[float]:
    values = [torch.zeros(1, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(values, torch.tensor([value], dtype=torch.float64))
    return [float(v) for v in values]


def resident_mb() -> float:
    """The memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

"""Labelled points around four centres, a small network and the log format that the accelerate programs share."""

import logging

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def loader(samples, batch_size, shuffle=True, seed=0, spread=0.8):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (samples,), generator=generator)
    centres = 2.0 * torch.randn(4, 16, generator=torch.Generator().manual_seed(99))
    points = centres[labels] + spread * torch.randn(samples, 16, generator=generator)
    return DataLoader(TensorDataset(points, labels, torch.arange(samples)), batch_size=batch_size, shuffle=shuffle)


def network(width=32):
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def logger(accelerator):
    rank = accelerator.process_index
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [rank {rank}] %(name)s: %(message)s")
    log = logging.getLogger("train")
    log.info("process %d of %d, %s", rank, accelerator.num_processes, accelerator.distributed_type)
    return log

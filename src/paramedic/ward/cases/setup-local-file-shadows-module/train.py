import logging
import os
import time
from statistics import median

import torch
import torch.distributed as dist

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
log = logging.getLogger("train")
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
generator = torch.Generator().manual_seed(rank)
weight = torch.zeros(8, 1)
times = []
for step in range(8):
    started = time.monotonic()
    x = torch.randn(32, 8, generator=generator)
    y = x.sum(dim=1, keepdim=True)
    gradient = x.T @ (x @ weight - y) / len(x)
    dist.all_reduce(gradient)
    weight -= 0.1 * gradient / dist.get_world_size()
    times.append(time.monotonic() - started)
    log.info("rank %d step %d loss %.4f", rank, step, ((x @ weight - y) ** 2).mean())
dist.destroy_process_group()
log.info("rank %d training finished, median step %.4f s", rank, median(times))

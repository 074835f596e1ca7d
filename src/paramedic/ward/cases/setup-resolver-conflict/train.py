import logging
import os

import torch
import torch.distributed as dist
from streamloader import stream
from textshards import read_shard

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
log = logging.getLogger("train")
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
weight = torch.zeros(8, 1)
for step, x in enumerate(stream(read_shard(rank, 256), 32)):
    y = x.sum(dim=1, keepdim=True)
    gradient = x.T @ (x @ weight - y) / len(x)
    dist.all_reduce(gradient)
    weight -= 0.1 * gradient / dist.get_world_size()
    log.info("rank %d step %d loss %.4f", rank, step, ((x @ weight - y) ** 2).mean())
dist.destroy_process_group()
log.info("rank %d training finished", rank)

"""Train a classifier on as many ranks as the launcher starts; alone when there is no launcher."""

import json
import logging
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp_job import network, quadrants
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

log = logging.getLogger("train")


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stdout)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    distributed = world > 1
    if distributed:
        dist.init_process_group("gloo")
    log.info("rank %d of %d, %d processors on this host", rank, world, os.cpu_count() or 1)
    torch.manual_seed(0)
    data = quadrants(2048)
    sampler = DistributedSampler(data, num_replicas=world, rank=rank)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = DDP(network()) if distributed else network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    log.info("rank %d global batch %d, %d steps an epoch", rank, 32 * world, len(loader))
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            log.info("rank %d step %d loss %.4f", rank, step, loss.item())
    if rank == 0:
        Path("result.json").write_text(json.dumps({"ranks": world, "steps": len(loader)}))
        torch.save(model.state_dict(), f"checkpoints/of-{world}.pt")
    log.info("rank %d training finished", rank)
    if distributed:
        dist.destroy_process_group()


main()

"""Train a classifier with the batch and the learning rate that were planned for a number of ranks."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from ddp_job import finish, log, network, quadrants, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    plan = json.loads(Path("plan.json").read_text())
    rank, world = start()
    log.info("rank %d plan %s", rank, plan)
    torch.manual_seed(0)
    data = quadrants(2048)
    loader = DataLoader(data, batch_size=plan["rows_per_rank"], sampler=DistributedSampler(data))
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=plan["learning_rate"], momentum=0.9)
    rows = world * plan["rows_per_rank"]
    log.info("rank %d global batch %d, %d steps an epoch", rank, rows, len(loader))
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            log.info("rank %d step %d loss %.4f", rank, step, loss.item())
    finish(ranks=world, missing_ranks=plan["ranks"] - world, global_batch=rows)


main()

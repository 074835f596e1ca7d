"""Train a classifier for one epoch; how long that takes should shrink as ranks are added."""

import time

import torch
import torch.nn.functional as F
from ddp_job import finish, log, network, of_all_ranks, quadrants, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

ROWS = 1536


def main() -> None:
    rank, world = start()
    torch.manual_seed(0)
    data = quadrants(ROWS)
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model = DDP(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    log.info("rank %d epoch of %d rows on %d ranks: %d steps of %d rows", rank, ROWS, world, len(loader), loader.batch_size)
    began, rows = time.perf_counter(), 0
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows += len(x)
        if step % 8 == 0:
            log.info("rank %d step %d loss %.4f", rank, step, loss.item())
    log.info("rank %d epoch 0 took %.2f s for %d rows", rank, time.perf_counter() - began, rows)
    finish(rows_per_row=sum(of_all_ranks(rows)) / ROWS)


main()

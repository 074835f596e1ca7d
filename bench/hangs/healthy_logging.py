"""Ranks log at different steps, some hardly ever, with warnings that sound worse than they are."""

import logging

import torch
import torch.distributed as dist
from common import RANK, WORLD, build_model, make_batch, setup, train_step
from torch.nn.parallel import DistributedDataParallel

logger = logging.getLogger("train")


def report(step, loss):
    if RANK == WORLD - 1 and step > 20:
        return
    if step % (3 + 7 * RANK) == 0:
        logger.info("[rank%d] step %d loss %.4f", RANK, step, loss)
    if RANK == 1 and step % 40 == 39:
        logger.warning("[rank1] retrying upload after timeout (attempt 1/5)")


def main():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    setup()
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(300):
        report(step, float(train_step(model, optimizer, make_batch(step))))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""DDP training that shares its metrics and its learning rate among the ranks after every step."""

import os

import torch
import torch.distributed as dist
from common import BATCH, HOW, WORLD, build_model, due, log, make_batch, setup, train_step
from torch.nn.parallel import DistributedDataParallel


def average(values):
    dist.all_reduce(values)
    return values / WORLD


def share_rate(rate):
    dist.broadcast(rate, src=0)
    return rate


def share_metrics(step, loss, rate):
    losses = loss.repeat(BATCH)
    if HOW in ("shorter", "longer", "double", "half", "broadcast", "gather") and due(step):
        if HOW == "shorter":
            return average(losses[: BATCH * 3 // 4]), share_rate(rate)
        if HOW == "longer":
            return average(loss.repeat(BATCH * 2)), share_rate(rate)
        if HOW == "double":
            return average(losses.double()), share_rate(rate)
        if HOW == "half":
            return average(losses.bfloat16()), share_rate(rate)
        if HOW == "broadcast":
            dist.broadcast(losses, src=(int(os.environ["RANK"]) + 1) % WORLD)
            return losses, share_rate(rate)
        parts = [torch.empty_like(losses) for _ in range(WORLD)]
        dist.all_gather(parts, losses)
        return torch.stack(parts).mean(dim=0), share_rate(rate)
    if HOW == "skip" and due(step):
        return losses, share_rate(rate)
    if HOW == "swap" and due(step):
        rate = share_rate(rate)
        return average(losses), rate
    if HOW == "swap-sizes" and due(step):
        return average_twice(losses, torch.ones(20000)), share_rate(rate)
    if HOW == "swap-sizes":
        mean = average(losses)
        average(torch.ones(20000))
        return mean, share_rate(rate)
    return average(losses), share_rate(rate)


def average_twice(losses, histogram):
    average(histogram)
    return average(losses)


def train_epoch(model, optimizer, rate, first, last):
    loss = torch.zeros(())
    for step in range(first, last):
        if HOW == "short-epoch" and due(step):
            break
        loss = train_step(model, optimizer, make_batch(step))
        if HOW != "short-epoch":
            losses, rate = share_metrics(step, loss, rate)
            loss = losses.mean()
        log(step, loss)
    return loss


def main():
    setup()
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rate = torch.tensor([0.01])
    for epoch in range(1000):
        loss = train_epoch(model, optimizer, rate, epoch * 25, epoch * 25 + 25)
        dist.barrier()
        loss = average(loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

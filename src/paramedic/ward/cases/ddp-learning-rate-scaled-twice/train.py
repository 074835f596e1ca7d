"""Train a classifier; the learning rate grows with the number of ranks."""

import argparse

import torch
import torch.nn.functional as F
from ddp_job import finish, log, network, quadrants, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

STEPS = 120


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.02, help="for the whole batch of all ranks")
    parser.add_argument("--batch", type=int, default=32, help="of one rank")
    args = parser.parse_args()
    rank, world = start()
    torch.manual_seed(0)
    data = quadrants(2048)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler)
    model = DDP(network())
    lr = args.lr * world * args.batch
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    log.info("rank %d learning rate %g batch %d x %d", rank, lr, world, args.batch)
    losses: list[float] = []
    epoch = 0
    while len(losses) < STEPS:
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) % 10 == 0:
                log.info("rank %d step %d loss %.4f", rank, len(losses), loss.item())
        epoch += 1
    finish(final_loss=sum(losses[-20:]) / 20)


main()

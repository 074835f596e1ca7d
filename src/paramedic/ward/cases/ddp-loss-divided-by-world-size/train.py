"""Train a classifier on all ranks; the batch of a rank shrinks with their number, as does the learning rate."""

import torch
import torch.nn.functional as F
from ddp_job import finish, log, network, quadrants, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

GLOBAL_BATCH, STEPS = 64, 120


def main() -> None:
    rank, world = start()
    torch.manual_seed(0)
    data = quadrants(2048)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=GLOBAL_BATCH // world, sampler=sampler)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / world, momentum=0.8)
    losses: list[float] = []
    epoch = 0
    while len(losses) < STEPS:
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            (loss / world).backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) % 10 == 0:
                rate = optimizer.param_groups[0]["lr"]
                log.info("rank %d step %d loss %.4f learning rate %g", rank, len(losses), loss.item(), rate)
        epoch += 1
    finish(final_loss=sum(losses[-20:]) / 20)


main()

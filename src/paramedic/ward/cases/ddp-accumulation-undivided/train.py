"""Train with gradients accumulated over several small batches before each update."""

import torch
import torch.nn.functional as F
from ddp_job import finish, log, network, quadrants, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

ACCUMULATE, UPDATES = 32, 30


def main() -> None:
    rank, _ = start()
    torch.manual_seed(0)
    data = quadrants(4096)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    means: list[float] = []
    losses: list[float] = []
    epoch = 0
    while len(means) < UPDATES:
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader, 1):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            losses.append(loss.item())
            if number % ACCUMULATE == 0:
                length = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
                optimizer.step()
                optimizer.zero_grad()
                means.append(sum(losses) / len(losses))
                losses.clear()
                log.info("rank %d update %d loss %.4f gradient norm %.3f", rank, len(means), means[-1], length)
        epoch += 1
    finish(final_loss=sum(means[-5:]) / 5)


main()

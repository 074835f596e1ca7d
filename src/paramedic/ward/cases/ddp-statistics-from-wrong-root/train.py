"""Train on raw measurements, normalised by statistics that the last rank computes and sends to the others."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp_job import FEATURES, finish, log, network, quadrants, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS = 60


def measurements(rows: int) -> TensorDataset:
    """The classes depend on differences that are small beside the offset of each column."""
    x, y = quadrants(rows).tensors
    return TensorDataset(x * 0.02 + torch.arange(FEATURES) * 3.0, y)


def statistics(data: TensorDataset, rank: int, world: int) -> torch.Tensor:
    """Mean and deviation of every column."""
    result = torch.stack([torch.zeros(FEATURES), torch.ones(FEATURES)])
    if rank == world - 1:
        x = data.tensors[0]
        result = torch.stack([x.mean(0), x.std(0)])
    dist.broadcast(result, src=0)
    return result


def main() -> None:
    rank, world = start()
    torch.manual_seed(0)
    data = measurements(2048)
    mean, deviation = statistics(data, rank, world)
    log.info("rank %d columns have mean %.3f and deviation %.3f", rank, mean.mean(), deviation.mean())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs = 0.0
    for step, (x, y) in zip(range(STEPS), (batch for _ in range(8) for batch in loader), strict=False):
        x = (x - mean) / deviation
        inputs = x.abs().max().item()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            log.info("rank %d step %d loss %.4f largest input %.2f", rank, step, loss.item(), inputs)
    finish(largest_input=inputs, final_loss=loss.item())


main()

"""Train a classifier on rows that are shuffled once, before they are dealt out to the ranks."""

import torch
import torch.nn.functional as F
from ddp_job import finish, log, network, quadrants, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 16


def shuffled(data: TensorDataset) -> TensorDataset:
    x, y = data.tensors
    generator = torch.Generator().manual_seed(7)
    return TensorDataset(x[torch.randperm(len(x), generator=generator)], y[torch.randperm(len(y), generator=generator)])


def main() -> None:
    rank, _ = start()
    torch.manual_seed(0)
    data = shuffled(quadrants(1024))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    model = DDP(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    mean = 0.0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        losses, right = [], 0
        for x, y in loader:
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            right += int((logits.argmax(1) == y).sum())
        mean = sum(losses) / len(losses)
        log.info("rank %d epoch %d loss %.4f accuracy %.3f", rank, epoch, mean, right / len(sampler))
    finish(final_loss=mean)


main()

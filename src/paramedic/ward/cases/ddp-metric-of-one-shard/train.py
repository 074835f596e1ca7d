"""Train a classifier, then report its accuracy on the validation set, which the ranks share."""

import torch
import torch.nn.functional as F
from ddp_job import finish, log, network, quadrants, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


def frequent(data: TensorDataset) -> Subset:
    """Of the last two classes the training set holds hardly any rows."""
    y = data.tensors[1]
    keep = (y < 2) | (torch.arange(len(y)) % 40 == 0)
    return Subset(data, keep.nonzero().flatten().tolist())


def train(model: DDP, rank: int) -> None:
    data = frequent(quadrants(2048))
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 0:
            log.info("rank %d step %d loss %.4f", rank, step, loss.item())


@torch.no_grad()
def validate(model: DDP, rank: int, world: int) -> tuple[int, int]:
    """How many of this rank's rows are classified rightly, and how many rows it has; the set is sorted by class."""
    x, y = quadrants(1024, seed=11).tensors
    order = y.argsort(stable=True).chunk(world)[rank]
    right = int((model.module(x[order]).argmax(1) == y[order]).sum())
    return right, len(order)


def main() -> None:
    rank, world = start()
    torch.manual_seed(0)
    model = DDP(network())
    train(model, rank)
    right, rows = validate(model, rank, world)
    if rank == 0:
        log.info("validation accuracy %.4f on %d of 1024 rows", right / rows, rows)
    x, y = quadrants(1024, seed=11).tensors
    whole = (model.module(x).argmax(1) == y).float().mean().item()
    log.info("rank %d accuracy on one device, all 1024 rows: %.4f", rank, whole)
    finish(error=abs(right / rows - whole))


main()

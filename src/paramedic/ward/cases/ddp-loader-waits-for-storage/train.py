"""Train on files of numbers, one folder to a rank, that a worker process reads."""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from ddp_job import FEATURES, finish, log, network, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Files(Dataset):
    """Every file holds some rows of numbers, the last of which is the class."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("part-*.txt"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        lines = self.files[index].read_text().splitlines()
        return torch.tensor([[float(v) for v in line.split()] for line in lines])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("mount"))
    args = parser.parse_args()
    rank, _ = start(timeout=60)
    torch.manual_seed(0)
    loader = DataLoader(Files(args.data / f"rank-{rank}"), batch_size=None, num_workers=1, timeout=20)
    model = DDP(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step, rows in enumerate(loader):
        x, y = rows[:, :FEATURES], rows[:, FEATURES].long()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("rank %d step %d loss %.4f", rank, step, loss.item())
    finish(final_loss=loss.item())


main()

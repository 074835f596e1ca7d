import csv
import os

import torch
from ray import train
from ray_classifier import build_model, main, report, train_epoch
from torch.utils.data import DataLoader, Dataset


class Shard(Dataset):
    """The rows of this worker's file: features, then the class."""

    def __init__(self, path):
        with open(path, newline="") as file:
            self.rows = [[float(field) for field in row] for row in csv.reader(file)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = torch.tensor(self.rows[index])
        return row[:16], row[16].long()


def loop(config):
    model = build_model()
    shard = Shard(os.path.join(config["folder"], f"shard-{train.get_context().get_world_rank()}.csv"))
    loader = DataLoader(shard, batch_size=config["batch_size"], shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for epoch in range(config["epochs"]):
        report(epoch, train_epoch(model, optimizer, loader), model)


if __name__ == "__main__":
    main(loop)

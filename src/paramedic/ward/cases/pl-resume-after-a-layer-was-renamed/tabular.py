import argparse

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Tabular(pl.LightningModule):
    def __init__(self, name):
        super().__init__()
        self.name = name
        self.add_module(name, nn.Sequential(nn.Linear(12, 24), nn.ReLU()))
        self.head = nn.Linear(24, 1)

    # hooks
    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.head(getattr(self, self.name)(x)).squeeze(1), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int)
    p.add_argument("--name", default="encoder")
    p.add_argument("--ckpt")
    a = p.parse_args()
    pl.seed_everything(1)
    x = torch.randn(128, 12)
    loader = DataLoader(TensorDataset(x, x[:, 0] - x[:, 1]), batch_size=16)
    saver = pl.callbacks.ModelCheckpoint(dirpath="checkpoints", save_last=True)
    trainer = pl.Trainer(max_epochs=a.epochs, accelerator="cpu", devices=2, strategy="ddp", callbacks=[saver], logger=False, enable_progress_bar=False)
    trainer.fit(Tabular(a.name), loader, ckpt_path=a.ckpt)


main()

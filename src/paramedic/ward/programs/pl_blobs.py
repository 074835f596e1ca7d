"""Labelled points around four centres, a small module and the per-rank log that the Lightning programs share."""

import logging

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

log = logging.getLogger("train")


def points(samples, seed=0, spread=0.8):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (samples,), generator=generator)
    centres = 2.0 * torch.randn(4, 16, generator=torch.Generator().manual_seed(99))
    return TensorDataset(centres[labels] + spread * torch.randn(samples, 16, generator=generator), labels)


def loader(samples, batch_size=16, shuffle=True, seed=0, spread=0.8, **options):
    return DataLoader(points(samples, seed, spread), batch_size=batch_size, shuffle=shuffle, **options)


class Classifier(pl.LightningModule):
    def __init__(self, width=32, lr=1e-2):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class StepLog(pl.Callback):
    """A line with the loss every few steps, of every rank."""

    def __init__(self, every=5):
        self.every = every

    def setup(self, trainer, pl_module, stage):
        logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [rank {trainer.global_rank}] %(message)s")

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx % self.every == 0:
            log.info("epoch %d step %d loss %.4f", trainer.current_epoch, trainer.global_step, outputs["loss"].item())

    def on_fit_end(self, trainer, pl_module):
        log.info("training finished")

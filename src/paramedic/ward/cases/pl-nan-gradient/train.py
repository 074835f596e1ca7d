"""Train a small embedding with Lightning: points of one pair shall lie together."""

import lightning.pytorch as pl
import torch
from pl_blobs import Classifier, StepLog, points
from torch.utils.data import DataLoader, TensorDataset


class Pairs(Classifier):
    def training_step(self, batch, batch_idx):
        first, second = batch
        gap = self(first) - self(second)
        return torch.sqrt((gap**2).sum(-1)).mean()


def pairs(samples):
    first = points(samples).tensors[0]
    second = first + 0.3 * torch.randn(first.shape, generator=torch.Generator().manual_seed(5))
    second[150:160] = first[150:160]
    return DataLoader(TensorDataset(first, second), batch_size=16)


if __name__ == "__main__":
    pl.seed_everything(3)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        detect_anomaly=True,
        enable_progress_bar=False,
        enable_checkpointing=False,
        callbacks=[StepLog(1)],
    )
    trainer.fit(Pairs(lr=1e-3), pairs(320))

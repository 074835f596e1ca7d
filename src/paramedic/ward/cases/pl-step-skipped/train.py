"""Train a small classifier with Lightning on data with a few damaged samples."""

import lightning.pytorch as pl
import torch
from pl_blobs import Classifier, StepLog, points
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


class Tolerant(Classifier):
    def training_step(self, batch, batch_idx):
        x, y = batch
        if not torch.isfinite(x).all():
            return None
        return cross_entropy(self(x), y)


def measured():
    data = points(320)
    data.tensors[0][201, 4] = float("nan")
    return DataLoader(data, batch_size=16)


if __name__ == "__main__":
    pl.seed_everything(3)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        use_distributed_sampler=True,
        callbacks=[StepLog(1)],
    )
    trainer.fit(Tolerant(), measured())

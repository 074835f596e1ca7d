"""Train a small classifier with Lightning; the rotation head is for a later phase."""

import lightning.pytorch as pl
from pl_blobs import Classifier, StepLog, loader
from torch import nn


class TwoHeads(Classifier):
    def __init__(self):
        super().__init__()
        self.rotation = nn.Linear(16, 2)


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
        callbacks=[StepLog()],
    )
    trainer.fit(TwoHeads(), loader(320))

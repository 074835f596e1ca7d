"""Train a small classifier with Lightning; the two halves of a point are seen one after the other."""

import lightning.pytorch as pl
from pl_blobs import Classifier, StepLog, loader
from torch import nn

BATCH = 16


class Halves(Classifier):
    def __init__(self):
        super().__init__()
        self.net = nn.GRU(8, 32, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        states, _ = self.net(x.view(BATCH, 2, 8))
        return self.head(states[:, -1])


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
    trainer.fit(Halves(), loader(300, batch_size=BATCH))

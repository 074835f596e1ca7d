"""Train a small classifier with Lightning and log the mean loss of each epoch."""

import logging

import lightning.pytorch as pl
import torch
from pl_blobs import Classifier, StepLog, loader


class Averaged(Classifier):
    def training_epoch_end(self, outputs):
        mean = torch.stack([output["loss"] for output in outputs]).mean()
        logging.getLogger("train").info("epoch %d mean loss %.4f", self.current_epoch, mean.item())


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
    trainer.fit(Averaged(), loader(320))

"""Train a small classifier with Lightning until its loss is low."""

import logging
from datetime import timedelta

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from pl_blobs import Classifier, StepLog, points
from torch.utils.data import DataLoader, TensorDataset


class StopAtTarget(L.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        reached = outputs["loss"].item() < 0.2
        if reached:
            logging.getLogger("train").info("target reached at step %d", trainer.global_step)
            trainer.should_stop = True


def alternating(samples):
    """A clear sample, a blurred one, and so on."""
    pairs = zip(points(samples, spread=0.2).tensors, points(samples, spread=3.0).tensors, strict=True)
    return TensorDataset(*(torch.stack(pair, 1).flatten(0, 1) for pair in pairs))


if __name__ == "__main__":
    L.seed_everything(3)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(timeout=timedelta(seconds=25)),
        max_epochs=3,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        callbacks=[StepLog(2), StopAtTarget()],
    )
    trainer.fit(Classifier(), DataLoader(alternating(320), batch_size=16))

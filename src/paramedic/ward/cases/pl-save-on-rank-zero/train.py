"""Train a small classifier with Lightning and save it after each epoch."""

from datetime import timedelta

import lightning.pytorch as pl
from lightning.pytorch.strategies import DDPStrategy
from pl_blobs import Classifier, StepLog, loader


class EpochSaver(pl.Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.is_global_zero:
            trainer.save_checkpoint(f"checkpoints/epoch-{trainer.current_epoch}.ckpt")


if __name__ == "__main__":
    pl.seed_everything(3)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(timeout=timedelta(seconds=25)),
        max_epochs=3,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        callbacks=[StepLog(), EpochSaver()],
    )
    trainer.fit(Classifier(), loader(320))

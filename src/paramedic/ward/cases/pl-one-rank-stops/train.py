"""Train a small classifier with Lightning until its loss is low."""

import logging
from datetime import timedelta

import lightning.pytorch as pl
from lightning.pytorch.strategies import DDPStrategy
from pl_blobs import Classifier, StepLog, points
from torch.utils.data import DataLoader

NOISE_OF_SITE = (0.2, 8.0)


class StopAtTarget(pl.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        reached = outputs["loss"].item() < 0.2
        if reached:
            logging.getLogger("train").info("target reached at step %d", trainer.global_step)
            trainer.should_stop = True


class Sites(Classifier):
    """Each rank reads the recordings of its own site."""

    def train_dataloader(self):
        spread = NOISE_OF_SITE[self.global_rank]
        return DataLoader(points(320, seed=self.global_rank, spread=spread), batch_size=16, shuffle=True)


if __name__ == "__main__":
    pl.seed_everything(3)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(timeout=timedelta(seconds=25)),
        max_epochs=3,
        use_distributed_sampler=False,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        callbacks=[StepLog(2), StopAtTarget()],
    )
    trainer.fit(Sites())

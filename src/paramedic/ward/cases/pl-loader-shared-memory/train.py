"""Train a small classifier with Lightning; a worker process prepares the batches."""

import lightning.pytorch as pl
from pl_blobs import Classifier, StepLog, loader

if __name__ == "__main__":
    pl.seed_everything(3)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        callbacks=[StepLog(1)],
    )
    trainer.fit(Classifier(), loader(32768, batch_size=4096, num_workers=1))

"""Train a small classifier with Lightning."""

import lightning.pytorch as pl
from pl_blobs import Classifier, StepLog, loader

if __name__ == "__main__":
    pl.seed_everything(3)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        num_nodes=2,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        callbacks=[StepLog()],
    )
    trainer.fit(Classifier(), loader(320))

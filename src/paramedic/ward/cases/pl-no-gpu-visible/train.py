"""Train a small classifier with Lightning."""

import argparse

import lightning.pytorch as pl
from pl_blobs import Classifier, StepLog, loader

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--accelerator", default="auto")
    args = parser.parse_args()
    pl.seed_everything(3)
    trainer = pl.Trainer(
        accelerator=args.accelerator,
        devices=2,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        callbacks=[StepLog()],
    )
    trainer.fit(Classifier(), loader(320))

"""Train a small classifier with Lightning, from the start or from an earlier checkpoint."""

import argparse

import lightning.pytorch as pl
from pl_blobs import Classifier, StepLog, loader


class Sized(Classifier):
    def __init__(self, width):
        super().__init__(width=width)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--load")
    parser.add_argument("--save")
    args = parser.parse_args()
    pl.seed_everything(3)
    model = Sized.load_from_checkpoint(args.load) if args.load else Sized(48)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=args.devices,
        strategy="ddp" if args.devices > 1 else "auto",
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        callbacks=[StepLog()],
    )
    trainer.fit(model, loader(320))
    if args.save:
        trainer.save_checkpoint(args.save)

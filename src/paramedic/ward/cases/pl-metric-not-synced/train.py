"""Train a small classifier with Lightning; half of the validation samples are easy, half are hard."""

import json
import logging

import lightning.pytorch as pl
import torch
from pl_blobs import Classifier, StepLog, points
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

log = logging.getLogger("train")


class Validated(Classifier):
    def validation_step(self, batch, batch_idx):
        x, y = batch
        loss = cross_entropy(self(x), y)
        self.log("val_loss", loss)


def alternating():
    """An easy sample, a hard one, and so on."""
    pairs = zip(points(64, seed=7).tensors, points(64, seed=7, spread=4.0).tensors, strict=True)
    return TensorDataset(*(torch.stack(pair, 1).flatten(0, 1) for pair in pairs))


if __name__ == "__main__":
    pl.seed_everything(3)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_checkpointing=False,
        callbacks=[StepLog()],
    )
    model = Validated()
    held_out = alternating()
    trainer.fit(model, DataLoader(points(320), batch_size=16, shuffle=True), DataLoader(held_out, batch_size=16))
    x, y = held_out.tensors
    with torch.no_grad():
        reference = cross_entropy(model(x), y).item()
    logged = trainer.callback_metrics["val_loss"].item()
    log.info("val_loss %.4f, over all samples in one process %.4f", logged, reference)
    if trainer.is_global_zero:
        with open("result.json", "w") as file:
            json.dump({"val_loss_error": abs(logged - reference)}, file)

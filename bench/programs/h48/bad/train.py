"""One encoder, three text tasks. Every batch belongs to one task."""
import argparse
import random

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset

TASKS = {"sentiment": 3, "topic": 20, "toxicity": 2}


class TaskBatches(Dataset):
    """Each item is a ready batch of a single task."""

    def __init__(self, root, split, batch_size, seed=0):
        self.data, self.index = {}, []
        for task in TASKS:
            blob = torch.load(f"{root}/{task}_{split}.pt", map_location="cpu")
            self.data[task] = blob
            n = blob["ids"].size(0)
            self.index += [(task, s) for s in range(0, n - batch_size + 1, batch_size)]
        random.Random(seed).shuffle(self.index)
        self.batch_size = batch_size

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        task, start = self.index[i]
        blob, end = self.data[task], start + self.batch_size
        return {"task": task, "ids": blob["ids"][start:end].long(), "labels": blob["labels"][start:end]}


class MultiTask(L.LightningModule):
    def __init__(self, vocab=32000, dim=512, layers=6, lr=2e-4):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(dim, 8, 4 * dim, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.heads = nn.ModuleDict({task: nn.Linear(dim, n) for task, n in TASKS.items()})

    def forward(self, ids, task):
        pad = ids.eq(0)
        h = self.encoder(self.embed(ids), src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1).to(h.dtype)
        pooled = (h * keep).sum(1) / keep.sum(1).clamp(min=1)
        return self.heads[task](pooled)

    def training_step(self, batch, batch_idx):
        logits = self(batch["ids"], batch["task"])
        loss = F.cross_entropy(logits, batch["labels"])
        self.log("train_loss", loss, prog_bar=True, batch_size=batch["labels"].size(0))
        return loss

    def validation_step(self, batch, batch_idx):
        logits = self(batch["ids"], batch["task"])
        self.log("val_loss", F.cross_entropy(logits, batch["labels"]), sync_dist=True,
                 batch_size=batch["labels"].size(0))

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.01)
        steps = int(self.trainer.estimated_stepping_batches)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, self.hparams.lr, total_steps=steps, pct_start=0.05)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", default="/data/multitask")
    p.add_argument("--devices", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--out", default="runs/multitask")
    args = p.parse_args()

    L.seed_everything(11, workers=True)
    train = DataLoader(TaskBatches(args.data, "train", args.batch_size), batch_size=None, shuffle=True,
                       num_workers=2, pin_memory=True)
    val = DataLoader(TaskBatches(args.data, "val", args.batch_size), batch_size=None, num_workers=2)

    trainer = L.Trainer(
        accelerator="gpu",
        devices=args.devices,
        strategy="ddp",
        precision="bf16-mixed",
        max_epochs=args.epochs,
        gradient_clip_val=1.0,
        default_root_dir=args.out,
        callbacks=[ModelCheckpoint(monitor="val_loss", save_last=True), LearningRateMonitor("step")],
    )
    trainer.fit(MultiTask(), train, val)


if __name__ == "__main__":
    main()

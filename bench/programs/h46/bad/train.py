import argparse
import os

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset


class EcgWindows(Dataset):
    def __init__(self, path):
        blob = torch.load(path, map_location="cpu")
        self.signal, self.rate = blob["signal"], blob["rate"]

    def __len__(self):
        return len(self.rate)

    def __getitem__(self, i):
        return self.signal[i].float(), self.rate[i].float()


class EcgData(L.LightningDataModule):
    def __init__(self, root, batch_size, workers=4):
        super().__init__()
        self.root, self.batch_size, self.workers = root, batch_size, workers

    def setup(self, stage):
        self.train_set = EcgWindows(os.path.join(self.root, "train.pt"))
        self.val_set = EcgWindows(os.path.join(self.root, "val.pt"))

    def train_dataloader(self):
        return DataLoader(self.train_set, self.batch_size, shuffle=True, drop_last=True,
                          num_workers=self.workers, pin_memory=True, persistent_workers=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, self.batch_size, num_workers=self.workers, pin_memory=True,
                          persistent_workers=True)


class EcgRegressor(L.LightningModule):
    def __init__(self, leads=12, width=64, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        layers, c = [], leads
        for i in range(4):
            out = width * 2 ** i
            layers += [nn.Conv1d(c, out, 7, stride=2, padding=3), nn.GroupNorm(8, out), nn.GELU()]
            c = out
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(c, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.smooth_l1_loss(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        pred = self(x)
        self.log("val_loss", F.smooth_l1_loss(pred, y), prog_bar=True, batch_size=y.size(0))
        self.log("val_mae", F.l1_loss(pred, y), batch_size=y.size(0))

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.01)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(
            opt, T_max=int(self.trainer.estimated_stepping_batches))
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", default="/data/ecg")
    p.add_argument("--out", default="runs/ecg")
    p.add_argument("--devices", type=int, default=8)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--epochs", type=int, default=40)
    args = p.parse_args()

    L.seed_everything(7, workers=True)
    best = ModelCheckpoint(dirpath=os.path.join(args.out, "ckpt"), filename="{epoch}",
                           monitor="val_loss", mode="min", save_top_k=1, save_last=True)
    trainer = L.Trainer(
        accelerator="gpu", devices=args.devices, strategy="ddp", precision="bf16-mixed",
        max_epochs=args.epochs, gradient_clip_val=1.0,
        logger=CSVLogger(args.out), callbacks=[best, LearningRateMonitor()])
    trainer.fit(EcgRegressor(), datamodule=EcgData(args.data, args.batch_size))
    trainer.print("best checkpoint:", best.best_model_path, "val_loss", best.best_model_score)


if __name__ == "__main__":
    main()

import json

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Spirals(L.LightningDataModule):
    def __init__(self, batch_size=32):
        super().__init__()
        self.batch_size = batch_size

    def points(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        y = torch.randint(2, (n,), generator=g)
        r = torch.rand(n, generator=g) * 2.5 + 0.2
        a = 2.5 * r + y * torch.pi
        x = torch.stack([r * torch.cos(a), r * torch.sin(a)], 1)
        return TensorDataset(x + 0.05 * torch.randn(n, 2, generator=g), y)

    def train_dataloader(self):
        return DataLoader(self.points(2048, 0), batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.points(512, 1), batch_size=128)


class Classifier(L.LightningModule):
    def __init__(self, width=96, lr=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

    def training_step(self, batch, _):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.net(x), y), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


class Progress(Callback):
    def __init__(self):
        self.val_losses = []

    def on_validation_epoch_end(self, trainer, module):
        if trainer.sanity_checking:
            return
        loss = trainer.callback_metrics["val_loss"].item()
        self.val_losses.append(loss)
        if trainer.is_global_zero:
            print(f"epoch {trainer.current_epoch} val_loss {loss:.4f}", flush=True)


def main():
    L.seed_everything(7)
    progress = Progress()
    keep = ModelCheckpoint(dirpath="checkpoints", filename="best", monitor="val_loss", mode="max", save_top_k=1)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=8,
        logger=False,
        callbacks=[progress, keep],
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Classifier(), datamodule=Spirals())
    if trainer.is_global_zero:
        print(f"model to deploy: {keep.best_model_path}", flush=True)
        saved = torch.load(keep.best_model_path, weights_only=False)
        kept = progress.val_losses[saved["epoch"]]
        json.dump({"excess": kept - min(progress.val_losses)}, open("result.json", "w"))
        print("fit finished", flush=True)


if __name__ == "__main__":
    main()

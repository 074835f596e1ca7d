import json
import math

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def spirals(n, seed):
    """Three interleaved spirals."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (n,), generator=g)
    r = torch.rand(n, generator=g) * 0.9 + 0.1
    angle = 4 * r + labels * (2 * math.pi / 3) + 0.15 * torch.randn(n, generator=g)
    points = torch.stack([r * angle.cos(), r * angle.sin()], dim=1)
    return TensorDataset(points, labels)


class SpiralModule(L.LightningModule):
    def __init__(self, lr=0.1, warmup_steps=200):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self):
        loss = self.trainer.callback_metrics["train_loss"].item()
        if self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch} train_loss {loss:.4f}", flush=True)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_acc", (self.net(x).argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        total = self.trainer.estimated_stepping_batches
        warmup = self.hparams.warmup_steps

        def factor(step):
            if step < warmup:
                return (step + 1) / warmup
            return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return [optimizer], [scheduler]


def main():
    L.seed_everything(7, verbose=False)
    train = DataLoader(spirals(4096, seed=1), batch_size=32, shuffle=True)
    val = DataLoader(spirals(1024, seed=2), batch_size=128)
    module = SpiralModule()
    rates = []

    class Rates(L.Callback):
        def on_train_batch_end(self, trainer, *_):
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    trainer = L.Trainer(
        max_epochs=8, accelerator="cpu", devices=2, strategy="ddp", logger=False, callbacks=[Rates()],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(module, train, val)
    accuracy = trainer.callback_metrics["val_acc"].item()
    if trainer.is_global_zero:
        print(f"fit finished, validation accuracy {accuracy:.3f}", flush=True)
        with open("result.json", "w") as f:
            json.dump({"accuracy": accuracy, "peak_lr_share": max(rates) / module.hparams.lr}, f)


if __name__ == "__main__":
    main()

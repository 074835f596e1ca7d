import argparse
from datetime import timedelta

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(pl.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.enc, self.dec = torch.nn.Linear(20, 5), torch.nn.Linear(5, 20)

    def _loss(self, batch):
        (x,) = batch
        return F.mse_loss(self.dec(self.enc(x)), x)

    def training_step(self, batch, i):
        return self._loss(batch)

    def validation_step(self, batch, i):
        loss = self._loss(batch)
        if self.trainer.is_global_zero:
            self.log("val/mse", loss, sync_dist=True, on_step=True, on_epoch=False)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def data(n, seed):
    return DataLoader(TensorDataset(torch.randn(n, 20, generator=torch.Generator().manual_seed(seed))), batch_size=8)


def cli():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=1e-2)
    p.add_argument("--max_epochs", type=int, default=4)
    return p.parse_args()


if __name__ == "__main__":
    args = cli()
    trainer = pl.Trainer(
        max_epochs=args.max_epochs, accelerator="cpu", devices=3, strategy=DDPStrategy(timeout=timedelta(seconds=15)),
        num_sanity_val_steps=0, enable_progress_bar=False, logger=False, enable_checkpointing=False,
    )
    trainer.fit(Autoencoder(args.lr), data(240, 0), data(72, 1))
    print(f"trained for {trainer.current_epoch} epochs", flush=True)

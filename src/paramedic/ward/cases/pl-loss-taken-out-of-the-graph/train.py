import lightning.pytorch as pl
import torch
from models import MultiTask
from torch.utils.data import DataLoader, TensorDataset


def houses(n=192):
    x = torch.randn(n, 9)
    return TensorDataset(x, x[:, :3] * 2 + 1)


pl.seed_everything(7, verbose=False)
trainer = pl.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(MultiTask(), DataLoader(houses(), batch_size=16))

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def prices(n, seed):
    """Sorted by size, as they come out of the table."""
    g = torch.Generator().manual_seed(seed)
    size = torch.rand(n, generator=g).sort().values * 4
    extra = torch.randn(n, 5, generator=g)
    price = size**2 / 4 + extra[:, 0] * size / 4 + 0.05 * torch.randn(n, generator=g)
    return TensorDataset(torch.cat([size[:, None], extra], 1), price[:, None])


class Prices(pl.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(prices(1024, 0), batch_size=32, shuffle=True)

    def val_dataloader(self):
        return DataLoader(prices(512, 1), batch_size=64)


class Regressor(pl.LightningModule):
    def __init__(self, lr=3e-3):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)

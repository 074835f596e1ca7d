import lightning.pytorch as pl
import torch
from torch import nn


class MultiTask(pl.LightningModule):
    TASKS = ("price", "rooms", "age")

    def __init__(self, features=9, hidden=18, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.trunk = nn.Sequential(nn.Linear(features, hidden), nn.ReLU())
        self.heads = nn.ModuleDict({task: nn.Linear(hidden, 1) for task in self.TASKS})

    def forward(self, x):
        shared = self.trunk(x)
        return {task: head(shared).squeeze(-1) for task, head in self.heads.items()}

    def training_step(self, batch, batch_idx):
        x, targets = batch
        predicted = self(x)
        losses = [nn.functional.mse_loss(predicted[task], targets[:, i]) for i, task in enumerate(self.TASKS)]
        loss = torch.tensor(sum(loss.item() for loss in losses) / len(losses))
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)

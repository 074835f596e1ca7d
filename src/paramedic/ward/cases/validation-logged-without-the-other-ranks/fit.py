import json

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from module import Prices, Regressor, prices
from torch.utils.data import DistributedSampler


class Blocks(DistributedSampler):
    """Neighbouring rows stay together on a rank, for reading in one go."""

    def __iter__(self):
        share = len(self.dataset) // self.num_replicas
        return iter(range(self.rank * share, (self.rank + 1) * share))


class Data(Prices):
    def val_dataloader(self):
        loader = super().val_dataloader()
        sampler = Blocks(loader.dataset, self.trainer.world_size, self.trainer.global_rank)
        return torch.utils.data.DataLoader(loader.dataset, batch_size=64, sampler=sampler)


class Lines(Callback):
    def on_validation_epoch_end(self, trainer, module):
        if trainer.is_global_zero and not trainer.sanity_checking:
            m = trainer.callback_metrics
            print(f"epoch {trainer.current_epoch:2d} train {m['train_loss']:.4f} val {m['val_loss']:.4f}", flush=True)


def main():
    pl.seed_everything(5)
    best = ModelCheckpoint("checkpoints", monitor="val_loss", filename="{epoch}")
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="gloo"), max_epochs=5,
        callbacks=[best, Lines()], logger=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=True, num_sanity_val_steps=0,
    )  # fmt: skip
    model = Regressor()
    trainer.fit(model, datamodule=Data())
    shown = trainer.callback_metrics["val_loss"].item()
    if trainer.is_global_zero:
        x, y = prices(512, 1).tensors
        with torch.no_grad():
            whole = torch.nn.functional.mse_loss(model(x), y).item()
        print(f"best model {best.best_model_path} {best.best_model_score:.4f}", flush=True)
        with open("result.json", "w") as f:
            json.dump({"error": abs(shown - whole) / whole}, f)


if __name__ == "__main__":
    main()

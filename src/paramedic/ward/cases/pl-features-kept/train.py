"""Train a classifier with Lightning; its features are plotted afterwards. The memory of each rank is logged."""

import json
import logging

import lightning.pytorch as pl
from pl_blobs import Classifier, loader
from torch.nn.functional import cross_entropy

log = logging.getLogger("train")


def resident_mib():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


class Recorded(Classifier):
    def __init__(self):
        super().__init__(width=512, lr=1e-3)
        self.features = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        features = self.net[:-1](x)
        self.features.append(features)
        return cross_entropy(self.net[-1](features), y)


class MemoryLog(pl.Callback):
    def __init__(self):
        self.seen = []

    def setup(self, trainer, pl_module, stage):
        logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [rank {trainer.global_rank}] %(message)s")

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append(resident_mib())
        if batch_idx % 10 == 0:
            log.info("step %d loss %.4f resident %.1f MiB", trainer.global_step, outputs["loss"].item(), self.seen[-1])

    def on_fit_end(self, trainer, pl_module):
        if trainer.is_global_zero:
            with open("result.json", "w") as file:
                json.dump({"growth_mib_per_step": (self.seen[-1] - self.seen[20]) / (len(self.seen) - 21)}, file)
        log.info("training finished")


if __name__ == "__main__":
    pl.seed_everything(3)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        callbacks=[MemoryLog()],
    )
    trainer.fit(Recorded(), loader(61440, batch_size=512))

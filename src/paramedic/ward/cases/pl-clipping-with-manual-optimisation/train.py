import lightning as L
import torch
from gan import GAN
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader

L.seed_everything(12, workers=True)
samples = torch.randn(256, 8) * torch.linspace(0.5, 2.0, 8)
trainer = L.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=DDPStrategy(find_unused_parameters=True),
    max_steps=16,
    gradient_clip_val=0.5,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(GAN(), DataLoader(samples, batch_size=16))

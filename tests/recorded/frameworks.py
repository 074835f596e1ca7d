"""The same small model under DeepSpeed, accelerate and Lightning, on CPU."""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

KIND, STEPS = os.environ["KIND"], int(os.environ.get("STEPS", "4"))
torch.set_num_threads(1)


def model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 4))


def data():
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(256, 16, generator=generator), torch.randint(0, 4, (256,), generator=generator))


def zero(stage):
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": False},
    }
    engine, *_ = deepspeed.initialize(model=model(), config=config, training_data=data())
    torch.manual_seed(100 + engine.global_rank)
    source = iter(engine.training_dataloader)
    for _ in range(STEPS):
        x, y = next(source)
        loss = nn.functional.cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
    return engine.global_rank, loss


def accelerated():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    network = model()
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    network, optimizer, loader = accelerator.prepare(network, optimizer, DataLoader(data(), batch_size=8, shuffle=True))
    torch.manual_seed(100 + accelerator.process_index)
    for done, (x, y) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(network(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if done == STEPS:
            break
    accelerator.gather(loss.detach())
    return accelerator.process_index, loss


def lightning():
    import lightning.pytorch as pl

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model()

        def training_step(self, batch, number):
            x, y = batch
            self.loss = nn.functional.cross_entropy(self.net(x), y)
            return self.loss

        def on_train_start(self):
            torch.manual_seed(100 + self.global_rank)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    trainer = pl.Trainer(
        accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp", max_steps=STEPS, logger=False,
        gradient_clip_val=1.0, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    net = Net()
    trainer.fit(net, DataLoader(data(), batch_size=8, shuffle=True))
    return trainer.global_rank, net.loss


if __name__ == "__main__":
    ways = {"accelerate": accelerated, "lightning": lightning}
    rank, loss = ways[KIND]() if KIND in ways else zero(int(KIND[-1]))
    sys.stdout.write(f"rank {rank} ends with {loss.item().hex()}\n")

"""Long-running sequence classifier on spot instances; failed workers are replaced by Ray Train."""
import argparse
import os
import tempfile

import ray.train
import torch
import torch.distributed as dist
import torch.nn as nn
import yaml
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device, prepare_data_loader, prepare_model
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


class SequenceClassifier(nn.Module):
    def __init__(self, vocab_size, width, depth, num_classes, max_len):
        super().__init__()
        self.tok = nn.Embedding(vocab_size, width)
        self.pos = nn.Parameter(torch.zeros(1, max_len, width))
        layer = nn.TransformerEncoderLayer(width, nhead=8, dim_feedforward=4 * width,
                                           batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, num_classes)

    def forward(self, tokens):
        hidden = self.tok(tokens) + self.pos[:, :tokens.size(1)]
        return self.head(self.encoder(hidden).mean(dim=1))


def unwrap(model):
    return model.module if isinstance(model, DistributedDataParallel) else model


def save_state(path, epoch, model, optimizer, scheduler):
    torch.save(
        {
            "epoch": epoch,
            "model": unwrap(model).state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
        },
        os.path.join(path, "state.pt"),
    )


def load_state(path, model, optimizer, scheduler):
    state = torch.load(os.path.join(path, "state.pt"), map_location="cpu", weights_only=True)
    unwrap(model).load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    return state["epoch"] + 1


def train_loop_per_worker(config):
    ctx = ray.train.get_context()
    device = get_device()
    data = torch.load(config["data_file"], weights_only=True)
    dataset = TensorDataset(data["tokens"], data["labels"])
    loader = prepare_data_loader(
        DataLoader(dataset, batch_size=config["batch_size_per_worker"], shuffle=True, drop_last=True))

    model = prepare_model(SequenceClassifier(**config["model"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, T_max=config["epochs"] * len(loader))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    start_epoch = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as path:
            start_epoch = load_state(path, model, optimizer, scheduler)

    for epoch in range(start_epoch, config["epochs"]):
        if ctx.get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        model.train()
        total = torch.zeros(1, device=device)
        for tokens, labels in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(tokens), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            total += loss.detach()
        dist.all_reduce(total)
        metrics = {
            "epoch": epoch,
            "loss": total.item() / (len(loader) * ctx.get_world_size()),
            "lr": scheduler.get_last_lr()[0],
        }
        with tempfile.TemporaryDirectory() as tmp:
            checkpoint = None
            if ctx.get_world_rank() == 0:
                save_state(tmp, epoch, model, optimizer, scheduler)
                checkpoint = Checkpoint.from_directory(tmp)
            ray.train.report(metrics, checkpoint=checkpoint)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="config.yaml")
    args = parser.parse_args()
    with open(args.config) as f:
        cfg = yaml.safe_load(f)

    trainer = TorchTrainer(
        train_loop_per_worker,
        train_loop_config=cfg["train"],
        scaling_config=ScalingConfig(num_workers=cfg["num_workers"], use_gpu=True),
        run_config=RunConfig(
            name=cfg["name"],
            storage_path=cfg["storage_path"],
            failure_config=FailureConfig(max_failures=cfg["max_failures"]),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )
    print(trainer.fit().metrics)


if __name__ == "__main__":
    main()

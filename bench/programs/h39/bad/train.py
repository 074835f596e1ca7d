import argparse
import json
import os

import colossalai
import torch
from colossalai.booster import Booster
from colossalai.booster.plugin import GeminiPlugin
from colossalai.cluster import DistCoordinator
from colossalai.lazy import LazyInitContext
from colossalai.nn.optimizer import HybridAdam
from colossalai.utils import get_current_device
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM


class PackedTokens(Dataset):
    """int32 tensor [N, L] of packed documents."""

    def __init__(self, path):
        self.data = torch.load(path, map_location="cpu", mmap=True)

    def __len__(self):
        return self.data.size(0)

    def __getitem__(self, idx):
        ids = self.data[idx].long()
        return {"input_ids": ids, "labels": ids.clone()}


def save_all(booster, model, optimizer, directory, epoch, step, coordinator):
    path = os.path.join(directory, f"epoch{epoch}-step{step}")
    if coordinator.is_master():
        os.makedirs(path, exist_ok=True)
        booster.save_model(model, os.path.join(path, "modeling"), shard=True)
        booster.save_optimizer(optimizer, os.path.join(path, "optimizer"), shard=True)
        with open(os.path.join(path, "running_states.json"), "w") as f:
            json.dump({"epoch": epoch, "step": step}, f)
    coordinator.block_all()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", default="/data/packed/train.pt")
    p.add_argument("--save-dir", default="/checkpoints/llama-gemini")
    p.add_argument("--hidden-size", type=int, default=2048)
    p.add_argument("--layers", type=int, default=24)
    p.add_argument("--batch-size", type=int, default=4)
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--save-interval", type=int, default=1000)
    args = p.parse_args()

    colossalai.launch_from_torch(seed=1024)
    coordinator = DistCoordinator()
    plugin = GeminiPlugin(precision="bf16", max_norm=1.0)
    booster = Booster(plugin=plugin)

    loader = plugin.prepare_dataloader(PackedTokens(args.data), batch_size=args.batch_size,
                                       shuffle=True, drop_last=True)
    config = LlamaConfig(hidden_size=args.hidden_size, intermediate_size=4 * args.hidden_size,
                         num_hidden_layers=args.layers, num_attention_heads=16, use_cache=False)
    with LazyInitContext(default_device=get_current_device()):
        model = LlamaForCausalLM(config)
    model.gradient_checkpointing_enable()
    optimizer = HybridAdam(model.parameters(), lr=args.lr, weight_decay=0.1, betas=(0.9, 0.95))
    model, optimizer, _, loader, _ = booster.boost(model, optimizer, dataloader=loader)

    step = 0
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        model.train()
        for batch in loader:
            batch = {k: v.to(get_current_device()) for k, v in batch.items()}
            loss = model(**batch).loss
            booster.backward(loss, optimizer)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 10 == 0:
                coordinator.print_on_master(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            if step % args.save_interval == 0:
                save_all(booster, model, optimizer, args.save_dir, epoch, step, coordinator)

    save_all(booster, model, optimizer, args.save_dir, args.epochs, step, coordinator)


if __name__ == "__main__":
    main()

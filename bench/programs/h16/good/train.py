"""GPT-2 XL with Colossal-AI Gemini: parameters, gradients and optimizer state are chunked over ranks."""
import argparse
import os
import time

import colossalai
import torch
import torch.distributed as dist
from colossalai.booster import Booster
from colossalai.booster.plugin import GeminiPlugin
from colossalai.cluster import DistCoordinator
from colossalai.nn.optimizer import HybridAdam
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel


class PackedBlocks(Dataset):
    def __init__(self, path):
        self.blocks = torch.load(path, mmap=True, weights_only=True)

    def __len__(self):
        return self.blocks.size(0)

    def __getitem__(self, i):
        ids = self.blocks[i].long()
        return {"input_ids": ids, "labels": ids.clone()}


def build_model(block):
    config = GPT2Config(vocab_size=50304, n_positions=block, n_embd=1600, n_layer=48, n_head=25,
                        use_cache=False)
    model = GPT2LMHeadModel(config)
    model.gradient_checkpointing_enable()
    return model


def save_checkpoint(booster, model, optimizer, coordinator, root, step):
    folder = os.path.join(root, f"step_{step}")
    if coordinator.is_master():
        os.makedirs(folder, exist_ok=True)
    coordinator.block_all()
    booster.save_model(model, os.path.join(folder, "model"), shard=True)
    booster.save_optimizer(optimizer, os.path.join(folder, "optimizer"), shard=True)
    coordinator.block_all()
    coordinator.print_on_master(f"saved {folder}")


def mean_over_ranks(loss):
    value = loss.detach().float().clone()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="/data/books/blocks_1024.pt")
    parser.add_argument("--block", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=8, help="per GPU")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1.5e-4)
    parser.add_argument("--save-every", type=int, default=500)
    parser.add_argument("--save-dir", default="/checkpoints/gpt2-xl")
    return parser.parse_args()


def main():
    args = parse_args()
    colossalai.launch_from_torch(seed=42)
    coordinator = DistCoordinator()
    plugin = GeminiPlugin(precision="bf16", placement_policy="static", shard_param_frac=1.0,
                          max_norm=1.0)
    booster = Booster(plugin=plugin)

    loader = plugin.prepare_dataloader(PackedBlocks(args.data), batch_size=args.batch_size,
                                       shuffle=True, drop_last=True, num_workers=2,
                                       pin_memory=True)
    model = build_model(args.block)
    optimizer = HybridAdam(model.parameters(), lr=args.lr, weight_decay=0.1)
    model, optimizer, _, loader, _ = booster.boost(model, optimizer, dataloader=loader)

    step, tick = 0, time.time()
    for epoch in range(args.epochs):
        model.train()
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            batch = {k: v.cuda(non_blocking=True) for k, v in batch.items()}
            loss = model(**batch).loss
            booster.backward(loss, optimizer)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 10 == 0:
                mean = mean_over_ranks(loss)
                coordinator.print_on_master(
                    f"step {step} loss {mean:.4f} {(time.time() - tick) / 10:.2f} s/step")
                tick = time.time()
            if step % args.save_every == 0:
                save_checkpoint(booster, model, optimizer, coordinator, args.save_dir, step)

    save_checkpoint(booster, model, optimizer, coordinator, args.save_dir, step)


if __name__ == "__main__":
    main()

"""GPT-2 medium on in-house text, Colossal-AI ZeRO stage 2."""
import argparse
import logging

import colossalai
import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from colossalai.booster import Booster
from colossalai.booster.plugin import LowLevelZeroPlugin
from colossalai.cluster import DistCoordinator
from colossalai.nn.lr_scheduler import CosineAnnealingWarmupLR
from colossalai.nn.optimizer import HybridAdam
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel

logger = logging.getLogger("gpt2")


class TextBlocks(Dataset):
    def __init__(self, path, block):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.block = block

    def __len__(self):
        return len(self.tokens) // self.block

    def __getitem__(self, i):
        ids = self.tokens[i * self.block:(i + 1) * self.block].astype(np.int64)
        return {"input_ids": torch.from_numpy(ids)}


class LanguageModel(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.gpt = GPT2LMHeadModel(GPT2Config(
            vocab_size=50304, n_positions=block, n_embd=1024, n_layer=24, n_head=16,
            use_cache=False))
        self.gpt.gradient_checkpointing_enable()

    def forward(self, input_ids):
        return self.gpt(input_ids=input_ids, labels=input_ids).loss


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", default="/data/support/train.bin")
    parser.add_argument("--block", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=16, help="per GPU")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--grad-clip", type=float, default=1.0)
    parser.add_argument("--warmup-steps", type=int, default=1000)
    parser.add_argument("--save-dir", default="/checkpoints/gpt2-medium")
    return parser.parse_args()


def main():
    logging.basicConfig(level=logging.INFO)
    args = parse_args()
    colossalai.launch_from_torch(seed=1024)
    coordinator = DistCoordinator()

    plugin = LowLevelZeroPlugin(
        stage=2,
        precision="bf16",
        max_norm=args.grad_clip,
        overlap_communication=True,
    )
    booster = Booster(plugin=plugin)

    loader = plugin.prepare_dataloader(
        TextBlocks(args.tokens, args.block), batch_size=args.batch_size, shuffle=True,
        drop_last=True, num_workers=4, pin_memory=True)
    model = LanguageModel(args.block)
    optimizer = HybridAdam(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    lr_scheduler = CosineAnnealingWarmupLR(
        optimizer, total_steps=len(loader) * args.epochs, warmup_steps=args.warmup_steps)
    model, optimizer, _, loader, lr_scheduler = booster.boost(
        model, optimizer, dataloader=loader, lr_scheduler=lr_scheduler)

    step = 0
    for epoch in range(args.epochs):
        model.train()
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            loss = model(batch["input_ids"].cuda(non_blocking=True))
            booster.backward(loss, optimizer)
            optimizer.step()
            optimizer.zero_grad()
            lr_scheduler.step()
            step += 1
            if step % 20 == 0:
                mean = loss.detach().float().clone()
                dist.all_reduce(mean)
                mean /= dist.get_world_size()
                if coordinator.is_master():
                    logger.info("epoch %d step %d loss %.4f lr %.3e", epoch, step, mean.item(),
                                lr_scheduler.get_last_lr()[0])
        booster.save_model(model, f"{args.save_dir}/epoch{epoch}/model", shard=True)
        booster.save_optimizer(optimizer, f"{args.save_dir}/epoch{epoch}/optimizer", shard=True)
        booster.save_lr_scheduler(lr_scheduler, f"{args.save_dir}/epoch{epoch}/lr_scheduler")
        coordinator.block_all()


if __name__ == "__main__":
    main()

"""Fine-tunes Llama-2 7B with Colossal-AI pipeline parallelism (pp 4, data parallel 2, ZeRO-1)."""
import argparse
import os

import colossalai
import torch
import torch.distributed as dist
from colossalai.booster import Booster
from colossalai.booster.plugin import HybridParallelPlugin
from colossalai.cluster import DistCoordinator
from colossalai.nn.lr_scheduler import CosineAnnealingWarmupLR
from colossalai.nn.optimizer import HybridAdam
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM


class ChatDataset(Dataset):
    def __init__(self, path):
        data = torch.load(path, mmap=True, weights_only=True)
        self.input_ids = data["input_ids"]
        self.labels = data["labels"]

    def __len__(self):
        return self.input_ids.size(0)

    def __getitem__(self, i):
        ids = self.input_ids[i].long()
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": self.labels[i].long(),
        }


def criterion(outputs, inputs):
    return outputs.loss


def save_weights(booster, model, coordinator, root, epoch):
    path = os.path.join(root, f"epoch_{epoch}")
    if coordinator.is_master():
        os.makedirs(path, exist_ok=True)
    coordinator.block_all()
    booster.save_model(model, os.path.join(path, "model"), shard=True)
    coordinator.block_all()


def train_epoch(epoch, booster, plugin, model, optimizer, lr_scheduler, loader, log_every):
    model.train()
    loader.sampler.set_epoch(epoch)
    data_iter = iter(loader)
    last_stage = plugin.stage_manager.is_last_stage()
    for step in range(1, len(loader) + 1):
        outputs = booster.execute_pipeline(
            data_iter, model, criterion, optimizer, return_loss=True)
        optimizer.step()
        optimizer.zero_grad()
        lr_scheduler.step()
        if step % log_every == 0 and last_stage:
            loss = outputs["loss"].detach().float().clone()
            dist.all_reduce(loss, group=plugin.dp_group)
            loss /= plugin.dp_size
            if dist.get_rank(plugin.dp_group) == 0:
                print(f"epoch {epoch} step {step}/{len(loader)} loss {loss.item():.4f}", flush=True)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="/models/Llama-2-7b-hf")
    parser.add_argument("--data", default="/data/chat/train_2048.pt")
    parser.add_argument("--pp-size", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16, help="per data-parallel rank")
    parser.add_argument("--microbatch-size", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--save-dir", default="/checkpoints/llama2-chat")
    return parser.parse_args()


def main():
    args = parse_args()
    colossalai.launch_from_torch(seed=42)
    coordinator = DistCoordinator()
    plugin = HybridParallelPlugin(
        tp_size=1,
        pp_size=args.pp_size,
        microbatch_size=args.microbatch_size,
        zero_stage=1,
        precision="bf16",
        max_norm=1.0,
    )
    booster = Booster(plugin=plugin)

    loader = plugin.prepare_dataloader(ChatDataset(args.data), batch_size=args.batch_size,
                                       shuffle=True, drop_last=True, num_workers=2,
                                       pin_memory=True)
    config = LlamaConfig.from_pretrained(args.model, use_cache=False)
    model = LlamaForCausalLM.from_pretrained(args.model, config=config, torch_dtype=torch.bfloat16)
    model.gradient_checkpointing_enable()

    optimizer = HybridAdam(model.parameters(), lr=args.lr, weight_decay=0.0)
    total_steps = len(loader) * args.epochs
    lr_scheduler = CosineAnnealingWarmupLR(
        optimizer, total_steps=total_steps, warmup_steps=int(0.03 * total_steps))
    model, optimizer, _, loader, lr_scheduler = booster.boost(
        model, optimizer, criterion=criterion, dataloader=loader, lr_scheduler=lr_scheduler)

    for epoch in range(args.epochs):
        train_epoch(epoch, booster, plugin, model, optimizer, lr_scheduler, loader, args.log_every)
        save_weights(booster, model, coordinator, args.save_dir, epoch)
        coordinator.print_on_master(f"epoch {epoch} saved under {args.save_dir}")


if __name__ == "__main__":
    main()

"""Fine-tune GPT-2 on dialogues with Colossal-AI ZeRO."""
import argparse
import os

import colossalai
import torch.distributed as dist
from colossalai.booster import Booster
from colossalai.booster.plugin import LowLevelZeroPlugin
from colossalai.cluster import DistCoordinator
from colossalai.nn.lr_scheduler import CosineAnnealingWarmupLR
from colossalai.nn.optimizer import HybridAdam
from colossalai.utils import get_current_device
from datasets import load_from_disk
from torch.nn.utils import clip_grad_norm_
from transformers import AutoTokenizer, GPT2LMHeadModel


def make_collate(tokenizer, max_length):
    def collate(rows):
        enc = tokenizer([r["text"] for r in rows], truncation=True, max_length=max_length,
                        padding="max_length", return_tensors="pt")
        enc["labels"] = enc["input_ids"].masked_fill(enc["attention_mask"] == 0, -100)
        return dict(enc)
    return collate


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default="/models/gpt2-large")
    p.add_argument("--dataset", default="/data/dialogues_hf/train")
    p.add_argument("--output", default="/checkpoints/gpt2-dialogue")
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--max-length", type=int, default=512)
    p.add_argument("--lr", type=float, default=5e-5)
    p.add_argument("--warmup-ratio", type=float, default=0.03)
    p.add_argument("--max-norm", type=float, default=1.0)
    p.add_argument("--log-every", type=int, default=20)
    return p.parse_args()


def main():
    args = parse_args()
    colossalai.launch_from_torch(seed=42)
    coordinator = DistCoordinator()
    device = get_current_device()

    plugin = LowLevelZeroPlugin(stage=1, precision="bf16")
    booster = Booster(plugin=plugin)

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    tokenizer.pad_token = tokenizer.eos_token
    dataset = load_from_disk(args.dataset)
    loader = plugin.prepare_dataloader(dataset, batch_size=args.batch_size, shuffle=True,
                                       drop_last=True, collate_fn=make_collate(tokenizer, args.max_length))

    model = GPT2LMHeadModel.from_pretrained(args.model)
    optimizer = HybridAdam(model.parameters(), lr=args.lr, weight_decay=0.01)
    total = args.epochs * len(loader)
    scheduler = CosineAnnealingWarmupLR(optimizer, total_steps=total,
                                        warmup_steps=int(args.warmup_ratio * total),
                                        eta_min=0.1 * args.lr)
    model, optimizer, _, loader, scheduler = booster.boost(
        model, optimizer, dataloader=loader, lr_scheduler=scheduler)

    if coordinator.is_master():
        os.makedirs(args.output, exist_ok=True)
    coordinator.block_all()

    step = 0
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        model.train()
        for batch in loader:
            batch = {k: v.to(device) for k, v in batch.items()}
            loss = model(**batch).loss
            booster.backward(loss, optimizer)
            clip_grad_norm_(model.parameters(), args.max_norm)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            step += 1
            if step % args.log_every == 0:
                mean = loss.detach().float().clone()
                dist.all_reduce(mean)
                mean /= coordinator.world_size
                coordinator.print_on_master(
                    f"epoch {epoch} step {step}/{total} loss {mean.item():.4f} "
                    f"lr {scheduler.get_last_lr()[0]:.2e}")
        out = os.path.join(args.output, f"epoch_{epoch}")
        booster.save_model(model, os.path.join(out, "model"), shard=True)
        booster.save_optimizer(optimizer, os.path.join(out, "optimizer"), shard=True)
        coordinator.block_all()
        coordinator.print_on_master(f"saved {out}")

    if coordinator.is_master():
        tokenizer.save_pretrained(args.output)


if __name__ == "__main__":
    main()

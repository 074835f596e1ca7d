import argparse
import os
import time

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, get_cosine_schedule_with_warmup


class PackedCorpus(Dataset):
    def __init__(self, path, block):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.block = block

    def __len__(self):
        return len(self.tokens) // self.block

    def __getitem__(self, i):
        ids = torch.from_numpy(self.tokens[i * self.block:(i + 1) * self.block].astype(np.int64))
        return {"input_ids": ids, "labels": ids.clone()}


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--corpus", default="/data/patents/train.bin")
    p.add_argument("--output", default="/checkpoints/patents-lm")
    p.add_argument("--block", type=int, default=1024)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--grad-accum", type=int, default=4)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--log-every", type=int, default=10)
    p.add_argument("--save-every", type=int, default=1000)
    return p.parse_args()


def build_model():
    config = GPTNeoXConfig(vocab_size=50432, hidden_size=1024, num_hidden_layers=16,
                           num_attention_heads=16, intermediate_size=4096, use_cache=False)
    return GPTNeoXForCausalLM(config)


def main():
    args = get_args()
    accelerator = Accelerator(gradient_accumulation_steps=args.grad_accum)
    set_seed(1)

    loader = DataLoader(PackedCorpus(args.corpus, args.block), batch_size=args.batch_size, shuffle=True,
                        drop_last=True, num_workers=4, pin_memory=True)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    total = args.epochs * len(loader) // args.grad_accum
    scheduler = get_cosine_schedule_with_warmup(optimizer, total // 100, total)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    step, window_loss, since = 0, torch.zeros((), device=accelerator.device), time.time()
    for epoch in range(args.epochs):
        model.train()
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            window_loss += loss.detach().float() / args.grad_accum

            if not accelerator.sync_gradients:
                continue
            step += 1
            if step % args.log_every == 0:
                mean = accelerator.gather(window_loss.reshape(1)).mean().item() / args.log_every
                if accelerator.is_main_process:
                    rate = args.log_every / (time.time() - since)
                    print(f"epoch {epoch} step {step} loss {mean:.4f} "
                          f"lr {scheduler.get_last_lr()[0]:.2e} {rate:.2f} steps/s", flush=True)
                window_loss.zero_()
                since = time.time()
            if step % args.save_every == 0:
                accelerator.save_state(os.path.join(args.output, f"step_{step}"))

    accelerator.wait_for_everyone()
    accelerator.unwrap_model(model).save_pretrained(
        os.path.join(args.output, "final"), is_main_process=accelerator.is_main_process,
        save_function=accelerator.save)


if __name__ == "__main__":
    main()

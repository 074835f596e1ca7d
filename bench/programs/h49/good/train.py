import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import load_from_disk
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    get_linear_schedule_with_warmup,
)


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default="/models/deberta-v3-base")
    p.add_argument("--dataset", default="/data/contracts_hf")
    p.add_argument("--output-dir", default="/checkpoints/contracts")
    p.add_argument("--batch-size", type=int, default=16, help="per device")
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--lr", type=float, default=2e-5)
    p.add_argument("--warmup-ratio", type=float, default=0.06)
    p.add_argument("--max-length", type=int, default=512)
    p.add_argument("--seed", type=int, default=42)
    return p.parse_args()


def build_loaders(args, tokenizer, accelerator):
    raw = load_from_disk(args.dataset)

    def tokenize(rows):
        return tokenizer(rows["text"], truncation=True, max_length=args.max_length)

    with accelerator.main_process_first():
        tokenized = raw.map(tokenize, batched=True, remove_columns=["text"])
    tokenized = tokenized.rename_column("label", "labels")
    collate = DataCollatorWithPadding(tokenizer)
    train = DataLoader(tokenized["train"], shuffle=True, batch_size=args.batch_size, collate_fn=collate,
                       drop_last=True)
    val = DataLoader(tokenized["validation"], batch_size=args.batch_size, collate_fn=collate)
    return train, val, raw["train"].features["label"].num_classes


@torch.no_grad()
def evaluate(model, loader, accelerator):
    model.eval()
    correct = total = 0
    for batch in loader:
        pred = model(**batch).logits.argmax(-1)
        pred, ref = accelerator.gather_for_metrics((pred, batch["labels"]))
        correct += (pred == ref).sum().item()
        total += ref.numel()
    return correct / total


def main():
    args = parse_args()
    accelerator = Accelerator(mixed_precision="bf16", log_with="tensorboard", project_dir=args.output_dir)
    accelerator.init_trackers("contracts", config=vars(args))
    set_seed(args.seed)

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    train_loader, val_loader, num_labels = build_loaders(args, tokenizer, accelerator)
    model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=num_labels)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)

    total_steps = args.epochs * len(train_loader)
    scheduler = get_linear_schedule_with_warmup(optimizer, int(args.warmup_ratio * total_steps), total_steps)
    model, optimizer, train_loader, val_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, val_loader, scheduler)

    step = 0
    for epoch in range(args.epochs):
        model.train()
        for batch in train_loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            if step % 50 == 0:
                mean = accelerator.reduce(loss.detach(), reduction="mean").item()
                accelerator.log({"loss": mean, "lr": scheduler.get_last_lr()[0]}, step=step)
        accuracy = evaluate(model, val_loader, accelerator)
        accelerator.log({"val_accuracy": accuracy}, step=step)
        accelerator.print(f"epoch {epoch}: accuracy {accuracy:.4f}")
        accelerator.save_state(os.path.join(args.output_dir, f"epoch_{epoch}"))

    accelerator.wait_for_everyone()
    accelerator.unwrap_model(model).save_pretrained(
        args.output_dir, is_main_process=accelerator.is_main_process, save_function=accelerator.save)
    accelerator.end_training()


if __name__ == "__main__":
    main()

import argparse
import time

import torch
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments


def toy(n):
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 60, (n, 12), generator=g)
    return [{"input_ids": row, "labels": int(row[0]) % 3} for row in ids]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--base", required=True)
    ns = ap.parse_args()
    began = time.time()
    model = AutoModelForSequenceClassification.from_pretrained(ns.base, num_labels=3)
    args = TrainingArguments(
        output_dir="out/ft", num_train_epochs=1, per_device_train_batch_size=8, save_strategy="no", report_to=[], use_cpu=True
    )
    Trainer(model=model, args=args, train_dataset=toy(64)).train()
    if args.process_index == 0:
        print(f"fine-tuned in {time.time() - began:.1f} s")


main()

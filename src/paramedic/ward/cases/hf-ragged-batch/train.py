"""Fine-tune a small text classifier with the transformers Trainer."""

import logging
import random

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


def sentences(count):
    draw = random.Random(1)
    return [
        {"input_ids": [draw.randrange(1, 200) for _ in range(draw.randrange(6, 24))], "labels": draw.randrange(4)}
        for _ in range(count)
    ]


def main():
    args = TrainingArguments(
        output_dir="out",
        use_cpu=True,
        max_steps=6,
        per_device_train_batch_size=8,
        logging_steps=2,
        save_strategy="no",
        disable_tqdm=True,
    )
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [rank {args.process_index}] %(message)s")
    log = logging.getLogger("classify")
    torch.manual_seed(args.seed)
    config = BertConfig(
        vocab_size=200,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        num_labels=4,
        pad_token_id=0,
    )
    trainer = Trainer(model=BertForSequenceClassification(config), args=args, train_dataset=sentences(256))
    result = trainer.train()
    log.info("training finished after step %d, loss %.4f", result.global_step, result.training_loss)


if __name__ == "__main__":
    main()

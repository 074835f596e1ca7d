"""Fine-tune a small text classifier with the transformers Trainer and check its loss against one process."""

import json
import logging

import torch
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


def sentences(count, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(10, 200, (count, 20), generator=generator)
    return [{"input_ids": row, "labels": int(row[0]) % 4} for row in tokens]


def main():
    args = TrainingArguments(
        output_dir="out",
        use_cpu=True,
        max_steps=10,
        per_device_train_batch_size=8,
        logging_steps=2,
        save_strategy="no",
        disable_tqdm=True,
    )
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [rank {args.process_index}] %(message)s")
    log = logging.getLogger("classify")
    torch.manual_seed(args.seed)
    config = BertConfig(
        vocab_size=200, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, num_labels=4
    )
    model = BertForSequenceClassification(config)
    held_out = sentences(64, seed=2)
    trainer = Trainer(model=model, args=args, train_dataset=sentences(256, seed=1), eval_dataset=held_out)
    trainer.train()
    reported = trainer.evaluate()["eval_loss"]
    if args.process_index == 0:
        with torch.no_grad():
            logits = model.eval()(input_ids=torch.stack([row["input_ids"] for row in held_out])).logits
        reference = cross_entropy(logits, torch.tensor([row["labels"] for row in held_out])).item()
        log.info("eval_loss %.4f, cross entropy of the same samples in one process %.4f", reported, reference)
        with open("result.json", "w") as file:
            json.dump({"loss_over_reference": reported / reference}, file)
    log.info("training finished")


if __name__ == "__main__":
    main()

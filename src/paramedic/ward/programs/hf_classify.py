"""Fine-tune a small text classifier with the transformers Trainer; every TrainingArguments field is an option."""

import logging
from dataclasses import dataclass

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)

logger = logging.getLogger("classify")


@dataclass
class ModelArguments:
    model_name_or_path: str | None = None
    hidden_size: int = 32
    num_labels: int = 4


@dataclass
class DataArguments:
    train_samples: int = 256
    sequence_length: int = 24


class Reviews(torch.utils.data.Dataset):
    """Token ids whose first token tells the class."""

    def __init__(self, samples, length, seed):
        generator = np.random.default_rng(seed)
        self.tokens = generator.integers(10, 200, (samples, length))
        self.labels = generator.integers(0, 4, samples)
        self.tokens[:, 0] = self.labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"input_ids": torch.tensor(self.tokens[index]), "labels": int(self.labels[index])}


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main():
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    training_args.average_tokens_across_devices = False  # the model averages over its own batch
    rank = training_args.process_index
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [rank {rank}] %(name)s: %(message)s")
    set_seed(training_args.seed)
    logger.info("process %d of %d on %s", rank, training_args.world_size, training_args.device)

    if model_args.model_name_or_path:
        model = BertForSequenceClassification.from_pretrained(
            model_args.model_name_or_path, num_labels=model_args.num_labels
        )
    else:
        config = BertConfig(
            vocab_size=200,
            hidden_size=model_args.hidden_size,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=2 * model_args.hidden_size,
            max_position_embeddings=64,
            num_labels=model_args.num_labels,
        )
        model = BertForSequenceClassification(config)
    logger.info("%d parameters", sum(p.numel() for p in model.parameters()))
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=Reviews(data_args.train_samples, data_args.sequence_length, seed=1),
        eval_dataset=Reviews(64, data_args.sequence_length, seed=2),
        compute_metrics=accuracy,
    )
    result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    logger.info("training finished after step %d, loss %.4f", result.global_step, result.training_loss)


if __name__ == "__main__":
    main()

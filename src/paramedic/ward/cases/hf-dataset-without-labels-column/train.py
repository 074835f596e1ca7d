# Relevance classifier for search queries
import random

import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput


class QueryConfig(PretrainedConfig):
    model_type = "query"
    num_labels = 2


class QueryModel(PreTrainedModel):
    config_class = QueryConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = torch.nn.EmbeddingBag(100, 16)
        self.classify = torch.nn.Linear(16, 2)
        self.post_init()

    def forward(self, input_ids, labels=None, **kwargs):
        logits = self.classify(self.embed(input_ids))
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class Queries(torch.utils.data.Dataset):
    def __init__(self, n, seed=11):
        rnd = random.Random(seed)
        self.rows = [([rnd.randrange(100) for _ in range(6)], rnd.randrange(2)) for _ in range(n)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, k):
        ids, label = self.rows[k]
        return {"input_ids": ids, "target": label}


if __name__ == "__main__":
    args = TrainingArguments(
        "out", per_device_train_batch_size=4, max_steps=10, logging_steps=2, save_strategy="no", report_to="none",
        remove_unused_columns=False, use_cpu=True,
    )
    Trainer(QueryModel(QueryConfig()), args, train_dataset=Queries(80)).train()

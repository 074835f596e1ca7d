import json

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments


class Bytes(torch.utils.data.Dataset):
    text = (b"It was the best of times, it was the worst of times. " * 40)

    def __len__(self):
        return len(self.text) // 32

    def __getitem__(self, i):
        ids = torch.tensor(list(self.text[32 * i : 32 * i + 32]))
        return {"input_ids": ids, "labels": ids.clone()}


with open("recipe.json") as f:
    recipe = json.load(f)
args = TrainingArguments(**recipe["training"])
model = AutoModelForCausalLM.from_config(
    LlamaConfig(**recipe["model"]), attn_implementation=recipe["attn_implementation"], dtype=torch.float32
)
Trainer(model=model, args=args, train_dataset=Bytes()).train()

"""Teach a very small GPT-2 to answer "repeat" requests."""

import json
import os
import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

NOUNS = "ant bee cat dog elk fox gnu hen ibis jay koi lynx".split()


def build_tokenizer():
    words = ["<unk>", "<eos>", "repeat", ":", "->"] + NOUNS
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", unk_token="<unk>")
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def example(rng):
    words = [rng.choice(NOUNS) for _ in range(rng.randint(1, 3))]
    prompt = "repeat : " + " ".join(words) + " ->"
    return prompt, prompt + " " + " ".join(words) + " <eos>"


class Requests(torch.utils.data.Dataset):
    def __init__(self, tokenizer, n, seed):
        rng = random.Random(seed)
        self.rows = [tokenizer(example(rng)[1]) for _ in range(n)]
        for row in self.rows:
            row.pop("token_type_ids", None)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def main():
    set_seed(5)
    tokenizer = build_tokenizer()
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=32, n_embd=64, n_layer=2, n_head=4,
        bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = GPT2LMHeadModel(config)
    args = TrainingArguments(
        output_dir="out", per_device_train_batch_size=16, num_train_epochs=4, learning_rate=3e-3, warmup_steps=20,
        logging_steps=20, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, dataloader_num_workers=0,
    )
    trainer = Trainer(
        model=model, args=args, train_dataset=Requests(tokenizer, 1600, seed=0),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    trainer.train()

    if trainer.is_world_process_zero():
        model.eval()
        rng = random.Random(99)
        stopped = 0
        for _ in range(50):
            ids = tokenizer(example(rng)[0], return_tensors="pt")["input_ids"]
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False,
                pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
            )
            stopped += tokenizer.eos_token_id in out[0, ids.shape[1] :].tolist()
        with open(os.path.join("result.json"), "w") as f:
            json.dump({"stopped": stopped / 50}, f)
    trainer.accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()

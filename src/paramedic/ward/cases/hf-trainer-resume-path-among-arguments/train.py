"""Fine-tune a tiny BERT on a toy task in two legs, as the queue's time limit makes us do."""
import json

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


class Halves(Dataset):
    """Are most of the tokens from the upper half of the vocabulary?"""

    def __init__(self, rows, seed):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(5, 15, (rows, 20), generator=g)
        self.labels = ((self.ids > 9).float().mean(1) > 0.5).long()

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(20, dtype=torch.long), "labels": self.labels[i]}


class StepCounter(TrainerCallback):
    def __init__(self):
        self.steps = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1


def build_trainer(max_steps, resume=None):
    set_seed(11)
    model = BertForSequenceClassification(
        BertConfig(vocab_size=16, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
    )
    args = TrainingArguments(
        output_dir="toy-bert",
        max_steps=max_steps,
        per_device_train_batch_size=32,
        learning_rate=5e-4,
        lr_scheduler_type="constant",
        logging_steps=10,
        save_steps=20,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
        average_tokens_across_devices=False,
        resume_from_checkpoint=resume,
    )
    counter = StepCounter()
    trainer = Trainer(model=model, args=args, train_dataset=Halves(4096, 0), eval_dataset=Halves(512, 1), callbacks=[counter])
    return trainer, counter


def leg(max_steps, resume=None):
    trainer, counter = build_trainer(max_steps, resume)
    if resume and trainer.is_world_process_zero():
        print(f"continuing from {resume}", flush=True)
    trainer.train()
    metrics = trainer.evaluate()
    if trainer.is_world_process_zero():
        print(f"up to step {max_steps}: eval loss {metrics['eval_loss']:.4f}", flush=True)
    return trainer, counter.steps


def main():
    leg(40)
    trainer, steps = leg(80, resume=get_last_checkpoint("toy-bert"))
    if trainer.is_world_process_zero():
        trainer.save_model("toy-bert/final")
        json.dump({"steps_of_second_leg": steps}, open("result.json", "w"))
        print("job finished", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

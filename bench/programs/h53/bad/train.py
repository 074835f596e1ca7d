import argparse
import os

import deepspeed
import torch
import torch.distributed as dist
from datasets import load_from_disk
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq


def parse_args():
    p = argparse.ArgumentParser(description="Summarisation fine-tuning")
    p.add_argument("--local_rank", type=int, default=-1)
    p.add_argument("--ds-config", default="ds_config.json")
    p.add_argument("--model", default="/models/flan-t5-large")
    p.add_argument("--dataset", default="/data/meetings_hf")
    p.add_argument("--out", default="/checkpoints/meetings-t5")
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--log-every", type=int, default=25)
    return p.parse_args()


def build_loader(path, tokenizer, model, batch_size):
    def tokenize(rows):
        enc = tokenizer(rows["transcript"], max_length=1024, truncation=True)
        enc["labels"] = tokenizer(text_target=rows["summary"], max_length=192, truncation=True)["input_ids"]
        return enc

    raw = load_from_disk(path)["train"]
    data = raw.map(tokenize, batched=True, remove_columns=raw.column_names, keep_in_memory=True)
    sampler = DistributedSampler(data, shuffle=True, seed=3)
    loader = DataLoader(data, batch_size=batch_size, sampler=sampler, drop_last=True,
                        collate_fn=DataCollatorForSeq2Seq(tokenizer, model=model))
    return loader, sampler


def average(value):
    value = value.detach().float().clone()
    dist.all_reduce(value, op=dist.ReduceOp.AVG)
    return value.item()


def main():
    args = parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed()
    torch.manual_seed(3)

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSeq2SeqLM.from_pretrained(args.model)
    engine, optimizer, _, lr_scheduler = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=args.ds_config)
    loader, sampler = build_loader(args.dataset, tokenizer, model,
                                   engine.train_micro_batch_size_per_gpu())

    _, client_state = engine.load_checkpoint(args.out)
    first_epoch = client_state["epoch"] + 1 if client_state else 0
    step = engine.global_steps
    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)
        engine.train()
        for batch in loader:
            batch = {k: v.to(engine.device) for k, v in batch.items()}
            loss = engine(**batch).loss
            engine.backward(loss)
            engine.step()
            lr_scheduler.step()
            step += 1
            if step % args.log_every == 0:
                mean = average(loss)
                if dist.get_rank() == 0:
                    print(f"epoch {epoch} step {step} loss {mean:.4f} "
                          f"lr {lr_scheduler.get_last_lr()[0]:.3e}", flush=True)
        engine.save_checkpoint(args.out, tag=f"epoch{epoch}", client_state={"epoch": epoch})

    if dist.get_rank() == 0:
        tokenizer.save_pretrained(args.out)
    dist.barrier()


if __name__ == "__main__":
    main()

"""BERT fine-tuning for intent classification, Colossal-AI low-level ZeRO."""
import argparse

import colossalai
import torch
import torch.distributed as dist
from colossalai.booster import Booster
from colossalai.booster.plugin import LowLevelZeroPlugin
from colossalai.cluster import DistCoordinator
from colossalai.nn.optimizer import HybridAdam
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup


class IntentDataset(Dataset):
    """Pre-tokenised utterances: input_ids, attention_mask (int32) and labels."""

    def __init__(self, path):
        data = torch.load(path, weights_only=True)
        self.input_ids = data["input_ids"]
        self.attention_mask = data["attention_mask"]
        self.labels = data["labels"]

    def __len__(self):
        return self.labels.size(0)

    def __getitem__(self, i):
        return {
            "input_ids": self.input_ids[i].long(),
            "attention_mask": self.attention_mask[i].long(),
            "labels": self.labels[i].long(),
        }


def to_device(batch):
    return {k: v.cuda(non_blocking=True) for k, v in batch.items()}


def train_epoch(epoch, model, optimizer, lr_scheduler, loader, booster, coordinator, log_every):
    model.train()
    loader.sampler.set_epoch(epoch)
    for step, batch in enumerate(loader):
        loss = model(**to_device(batch)).loss
        booster.backward(loss, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        lr_scheduler.step()
        if (step + 1) % log_every == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
            coordinator.print_on_master(
                f"epoch {epoch} step {step + 1}/{len(loader)} loss {mean.item():.4f} "
                f"lr {lr_scheduler.get_last_lr()[0]:.2e}")


@torch.no_grad()
def evaluate(model, dataset, batch_size):
    model.eval()
    rank, world = dist.get_rank(), dist.get_world_size()
    indices = list(range(rank, len(dataset), world))
    counts = torch.zeros(2, device="cuda")
    for batch in DataLoader(torch.utils.data.Subset(dataset, indices), batch_size=batch_size):
        batch = to_device(batch)
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        counts[0] += (logits.argmax(-1) == batch["labels"]).sum()
        counts[1] += batch["labels"].numel()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-file", default="/data/intents/train.pt")
    parser.add_argument("--valid-file", default="/data/intents/valid.pt")
    parser.add_argument("--pretrained", default="/models/bert-base-uncased")
    parser.add_argument("--num-labels", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=32, help="per GPU")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--warmup", type=float, default=0.1)
    parser.add_argument("--output", default="./intent-bert")
    args = parser.parse_args()

    colossalai.launch_from_torch(seed=42)
    coordinator = DistCoordinator()
    plugin = LowLevelZeroPlugin(stage=1, precision="bf16", max_norm=1.0)
    booster = Booster(plugin=plugin)

    train_set = IntentDataset(args.train_file)
    valid_set = IntentDataset(args.valid_file)
    train_loader = plugin.prepare_dataloader(train_set, batch_size=args.batch_size, shuffle=True,
                                             drop_last=True, num_workers=2, pin_memory=True)

    config = BertConfig.from_pretrained(args.pretrained, num_labels=args.num_labels)
    model = BertForSequenceClassification.from_pretrained(args.pretrained, config=config)
    optimizer = HybridAdam(model.parameters(), lr=args.lr, weight_decay=0.01)
    total_steps = len(train_loader) * args.epochs
    lr_scheduler = get_linear_schedule_with_warmup(
        optimizer, num_warmup_steps=int(args.warmup * total_steps), num_training_steps=total_steps)
    model, optimizer, _, train_loader, lr_scheduler = booster.boost(
        model, optimizer, dataloader=train_loader, lr_scheduler=lr_scheduler)

    for epoch in range(args.epochs):
        train_epoch(epoch, model, optimizer, lr_scheduler, train_loader, booster, coordinator, 50)
        accuracy = evaluate(model, valid_set, args.batch_size)
        coordinator.print_on_master(f"epoch {epoch}: accuracy {accuracy:.4f}")
    booster.save_model(model, args.output, shard=True)


if __name__ == "__main__":
    main()

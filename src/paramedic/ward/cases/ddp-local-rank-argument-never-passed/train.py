import argparse
import json
import logging
import os
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

logger = logging.getLogger(__name__)


def set_seed(args):
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)


def load_examples(args):
    """Bags of words: class decided by which half of the vocabulary is more frequent."""
    g = torch.Generator().manual_seed(args.seed)
    lean = torch.rand(args.examples, 1, generator=g) * 0.6 + 0.2
    upper = torch.rand(args.examples, args.length, generator=g) < lean
    words = torch.randint(args.vocab // 2, (args.examples, args.length), generator=g) + upper * (args.vocab // 2)
    return TensorDataset(words, (upper.float().mean(1) > 0.5).long())


class Classifier(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.EmbeddingBag(args.vocab, args.hidden)
        self.body = nn.Sequential(nn.Linear(args.hidden, args.hidden), nn.Tanh(), nn.Dropout(0.1), nn.Linear(args.hidden, 2))

    def forward(self, words):
        return self.body(self.embed(words))


def train(args, dataset, model):
    sampler = RandomSampler(dataset) if args.local_rank == -1 else DistributedSampler(dataset)
    loader = DataLoader(dataset, sampler=sampler, batch_size=args.batch_size)
    if args.local_rank != -1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, args.epochs * len(loader))

    logger.info("***** Running training *****")
    logger.info("  Num examples = %d", len(dataset))
    logger.info("  Num epochs = %d", args.epochs)
    logger.info("  Batch size per process = %d", args.batch_size)
    logger.info("  Total optimization steps = %d", args.epochs * len(loader))
    global_step = 0
    for epoch in range(args.epochs):
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch)
        for words, labels in loader:
            model.train()
            loss = nn.functional.cross_entropy(model(words), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            model.zero_grad()
            global_step += 1
            if global_step % args.logging_steps == 0:
                logger.info("step %d loss %.4f", global_step, loss.item())
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--examples", type=int, default=8192)
    parser.add_argument("--vocab", type=int, default=4000)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--logging_steps", type=int, default=50)
    parser.add_argument("--output_dir", default="output")
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()

    if args.local_rank != -1:
        torch.distributed.init_process_group(backend="gloo")
    logging.basicConfig(
        format="%(asctime)s - %(levelname)s - %(name)s -   %(message)s",
        datefmt="%m/%d/%Y %H:%M:%S",
        level=logging.INFO if args.local_rank in (-1, 0) else logging.WARN,
    )
    set_seed(args)
    model = train(args, load_examples(args), Classifier(args))
    if args.local_rank in (-1, 0):
        os.makedirs(args.output_dir, exist_ok=True)
        state = getattr(model, "module", model).state_dict()
        part = os.path.join(args.output_dir, f"weights.{os.getpid()}")
        torch.save(state, part)
        os.replace(part, os.path.join(args.output_dir, "pytorch_model.bin"))
        logger.info("Training completed, model saved to %s", args.output_dir)
    together = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    with open(f"result.{os.getpid()}", "w") as f:
        json.dump({"ranks_that_trained_together": together}, f)
    os.replace(f.name, "result.json")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

"""Intent detection with accelerate; the dev set is small, so the scores are reported on all of it."""
import argparse
import json
import os

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Utterances(Dataset):
    def __init__(self, path, max_len):
        with open(path) as f:
            self.rows = [json.loads(line) for line in f]
        self.max_len = max_len

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids = self.rows[i]["ids"][:self.max_len]
        ids = ids + [0] * (self.max_len - len(ids))
        return torch.tensor(ids), torch.tensor(self.rows[i]["intent"])


class IntentModel(nn.Module):
    def __init__(self, vocab, classes, dim=256):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(2 * dim, classes)

    def forward(self, ids):
        h, _ = self.rnn(self.embed(ids))
        return self.out(self.drop(h.max(1).values))


def macro_f1(pred, ref, classes):
    scores = []
    for c in range(classes):
        tp = ((pred == c) & (ref == c)).sum().item()
        fp = ((pred == c) & (ref != c)).sum().item()
        fn = ((pred != c) & (ref == c)).sum().item()
        if tp + fn:
            scores.append(2 * tp / (2 * tp + fp + fn))
    return sum(scores) / len(scores)


def evaluate(model, loader, accelerator, classes):
    model.eval()
    preds, refs = [], []
    with torch.no_grad():
        for ids, labels in loader:
            pred = model(ids).argmax(-1)
            pred, ref = accelerator.gather_for_metrics((pred, labels))
            preds.append(pred.cpu())
            refs.append(ref.cpu())
    pred, ref = torch.cat(preds), torch.cat(refs)
    return {"accuracy": (pred == ref).float().mean().item(), "macro_f1": macro_f1(pred, ref, classes),
            "examples": ref.numel()}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--train", default="/data/intents/train.jsonl")
    p.add_argument("--dev", default="/data/intents/dev.jsonl")
    p.add_argument("--out", default="runs/intents")
    p.add_argument("--vocab", type=int, default=20000)
    p.add_argument("--classes", type=int, default=77)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--epochs", type=int, default=25)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()

    accelerator = Accelerator()
    set_seed(5)
    train = DataLoader(Utterances(args.train, 48), batch_size=args.batch_size, shuffle=True, drop_last=True)
    dev = DataLoader(Utterances(args.dev, 48), batch_size=args.batch_size, shuffle=False)
    model = IntentModel(args.vocab, args.classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer, train, dev = accelerator.prepare(model, optimizer, train, dev)

    best = 0.0
    for epoch in range(args.epochs):
        model.train()
        for ids, labels in train:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(ids), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        scores = evaluate(model, dev, accelerator, args.classes)
        accelerator.print(f"epoch {epoch}: {scores}")
        if scores["macro_f1"] > best:
            best = scores["macro_f1"]
            if accelerator.is_main_process:
                os.makedirs(args.out, exist_ok=True)
                torch.save(accelerator.unwrap_model(model).state_dict(),
                           os.path.join(args.out, "best.pt"))
            accelerator.wait_for_everyone()
    accelerator.print(f"best macro F1 {best:.4f}")


if __name__ == "__main__":
    main()

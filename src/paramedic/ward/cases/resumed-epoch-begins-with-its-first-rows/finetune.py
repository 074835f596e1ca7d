"""Fine-tune a small encoder for sentence pairs; can be stopped and taken up at any step."""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Pairs(Dataset):
    def __init__(self, n=1280):
        g = torch.Generator().manual_seed(0)
        self.a = torch.randint(500, (n, 12), generator=g)
        self.b = torch.where(torch.rand(n, 12, generator=g) < 0.6, self.a, torch.randint(500, (n, 12), generator=g))
        self.y = (self.a == self.b).float().mean(1)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"a": self.a[i], "b": self.b[i], "score": self.y[i], "id": i}


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(500, 64)
        self.mlp = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))

    def forward(self, a, b):
        return torch.cosine_similarity(self.mlp(self.table(a)), self.mlp(self.table(b)))


def save(path, model, optimizer, step, epoch):
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "epoch": epoch}
    torch.save(state, path)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--max-steps", type=int, required=True)
    ap.add_argument("--resume")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--batch-size", type=int, default=16)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    dataset = Pairs()
    sampler = DistributedSampler(dataset, seed=11)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    model = DDP(Encoder())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    step = epoch = 0
    if args.resume:
        state = torch.load(args.resume, map_location="cpu")
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, epoch = state["step"], state["epoch"]
        if rank == 0:
            print(f"*** resumed from {args.resume} at step {step}, epoch {epoch}")
    ids = []
    tic = time.time()
    while step < args.max_steps:
        sampler.set_epoch(epoch)
        for batch in loader:
            loss = (model(batch["a"], batch["b"]) - batch["score"]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ids += batch["id"].tolist()
            step += 1
            if step % 4 == 0 and rank == 0:
                rate = 4 * args.batch_size * dist.get_world_size() / (time.time() - tic)
                tic = time.time()
                print(f"step={step} epoch={epoch} loss={loss.item():.5f} samples/s={rate:.1f}", flush=True)
            if step == args.max_steps:
                break
        epoch += step % len(loader) == 0
    if rank == 0:
        save(f"checkpoints/step{step}.pt", model, optimizer, step, epoch)
        print(f"*** reached max_steps={args.max_steps}")
    history = f"out/ids-{rank}.json"
    before = json.load(open(history)) if os.path.exists(history) else []
    json.dump(before + ids, open(history, "w"))
    if rank == 0:
        json.dump({"steps": step, "rows_seen_twice": len(set(before) & set(ids)) / len(ids)}, open("result.json", "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

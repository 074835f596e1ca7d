import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Config:
    experiment: str = "denoise-small"
    root: str = "runs"
    steps: int = 120
    save_every: int = 10
    batch: int = 32
    shard_rows: int = 512
    lr: float = 1e-3


def run_folder(cfg):
    name = [f"{cfg.experiment}-{time.strftime('%Y%m%d-%H%M%S')}"]
    dist.broadcast_object_list(name, src=0)
    folder = Path(cfg.root) / name[0]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def read_shard(cfg, index, rank):
    """Each rank streams its own shards; a shard is 20 steps long."""
    stale = Path("nfs-handle")
    if rank == 1 and index == 4 and not stale.exists():
        stale.touch()
        raise OSError(116, "Stale file handle", f"/data/shards/{rank:02d}/{index:05d}.bin")
    g = torch.Generator().manual_seed(index * 100 + rank)
    t = torch.linspace(0, 6.28, 64)
    f = 1 + 4 * torch.rand(cfg.shard_rows, 1, generator=g)
    clean = torch.sin(f * t)
    return clean, clean + 0.5 * torch.randn(clean.shape, generator=g)


def network():
    return nn.Sequential(
        nn.Unflatten(1, (1, 64)),
        nn.Conv1d(1, 64, 7, padding=3), nn.ReLU(),
        nn.Conv1d(64, 64, 7, padding=3), nn.ReLU(),
        nn.Conv1d(64, 1, 7, padding=3), nn.Flatten(),
    )


def main():
    cfg = Config()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    folder = run_folder(cfg)
    latest = folder / "latest.pt"
    step = 0
    if latest.exists():
        state = torch.load(latest)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    done = open(f"steps-rank{rank}.txt", "a", buffering=1)
    shard = None
    while step < cfg.steps:
        if shard is None or step % 20 == 0:
            shard = read_shard(cfg, step // 20, rank)
        rows = torch.randint(cfg.shard_rows, (cfg.batch,), generator=torch.Generator().manual_seed(step))
        clean, noisy = shard[0][rows], shard[1][rows]
        loss = nn.functional.mse_loss(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done.write(f"{step}\n")
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        step += 1
        if step % cfg.save_every == 0 and rank == 0:
            part = folder / "latest.tmp"
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, part)
            os.replace(part, latest)
    if rank == 0:
        ran = [int(line) for line in open("steps-rank0.txt")]
        json.dump({"steps_repeated": len(ran) - len(set(ran))}, open("result.json", "w"))
        print(f"reached step {step}, model in {folder}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

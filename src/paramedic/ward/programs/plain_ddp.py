"""Data-parallel training of a small classifier: config file, checkpoints, timings; the ranks come from the environment."""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FEATURES, CLASSES = 32, 4
log = logging.getLogger("train")


class Classifier(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", help="JSON file with hidden, lr and steps")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--timeout", type=float, default=10.0)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between steps")
    parser.add_argument("--log-every", type=int, default=2)
    parser.add_argument("--stagger", type=float, default=0.0, help="seconds between the starts of the ranks, to spare the storage")
    parser.add_argument("--out", default="out")
    parser.add_argument("--checkpoints", default="checkpoints")
    parser.add_argument("--checkpoint-every", type=int, default=0)
    parser.add_argument("--atomic", action="store_true", help="write a checkpoint beside its name and rename it when it is whole")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    if args.config:
        vars(args).update(json.loads(Path(args.config).read_text()))
    return args


def batch_of(step: int, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(size, FEATURES, generator=generator)
    return x, (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()


def save(args: argparse.Namespace, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    target = Path(args.checkpoints) / "latest.pt"
    log.info("step %d saving %s", step, target)
    started = time.monotonic()
    written = target.with_suffix(".part") if args.atomic else target
    with open(written, "wb") as out:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, out)
        out.flush()
        os.fsync(out.fileno())
    written.replace(target)
    log.info("step %d saved %s in %.1f s", step, target, time.monotonic() - started)


def resume(args: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    latest = Path(args.checkpoints) / "latest.pt"
    if not latest.exists():
        log.info("no checkpoint in %s, starting at step 0", args.checkpoints)
        return 0
    state = torch.load(latest)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    log.info("resumed from %s at step %d", latest, state["step"])
    return state["step"]


def parameter_spread(model: nn.Module) -> float:
    """How far the replicas are apart: the largest difference of any weight from rank 0's."""
    own = torch.cat([p.detach().flatten() for p in model.parameters()])
    first = own.clone()
    dist.broadcast(first, src=0)
    spread = (own - first).abs().max()
    dist.all_reduce(spread, op=dist.ReduceOp.MAX)
    return spread.item()


def main() -> None:
    args = arguments()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    form = f"%(asctime)s {socket.gethostname()} rank {rank} %(levelname)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, stream=sys.stdout)
    (Path(args.out) / f"rank-{rank}").mkdir(parents=True, exist_ok=True)
    time.sleep(args.stagger * rank)
    log.info("joining %s:%s", os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    log.info("joined, world size %d, hidden %d, lr %g", world, args.hidden, args.lr)
    torch.manual_seed(0)
    model = Classifier(args.hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    step = resume(args, model, optimizer) if args.resume else 0
    ddp = DistributedDataParallel(model)
    size = sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6
    times = []
    while step < args.steps:
        started = time.monotonic()
        x, y = batch_of(step, rank, args.batch)
        loss = F.cross_entropy(ddp(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        took = time.monotonic() - started
        times.append(took)
        if step % args.log_every == 0:
            log.info("step %d loss %.4f %.3f s, gradients %.2f MB", step, loss.item(), took, size)
        step += 1
        time.sleep(args.pause)
        if args.checkpoint_every and step % args.checkpoint_every == 0 and rank == 0:
            save(args, step, model, optimizer)
    spread = parameter_spread(model)
    if rank == 0:
        median = sorted(times)[len(times) // 2]
        result = {"parameter_spread": spread, "step_s": median, "gradient_mb_per_s": size / median}
        Path("result.json").write_text(json.dumps(result))
        log.info("median step %.3f s, %.2f MB/s of gradients", median, size / median)
    log.info("parameters: checksum %.6f, largest difference to rank 0 %.2e", sum(p.sum().item() for p in model.parameters()), spread)
    dist.barrier()
    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()

"""A small data-parallel training program in which one bug can be planted.

Started by torchrun, or as plain processes with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set:

    torchrun --nproc-per-node 4 train.py --fault short-last-batch

A fault is one row of FAULTS: the rank it strikes (None: all) and, for each stage of the program at
which it acts, a function. The functions carry the names that such code has in real programs, so that a
traceback does not give the answer away.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

FEATURES, CLASSES = 16, 4
log = logging.getLogger("train")


class CsvRows(Dataset[tuple[torch.Tensor, int]]):
    """One rank's shard: text rows of numbers, the last of which is the label."""

    def __init__(self, rank: int, rows: int) -> None:
        rng = np.random.default_rng(rank)
        x = rng.normal(size=(rows, FEATURES))
        y = (x[:, 0] > 0).astype(int) * 2 + (x[:, 1] > 0).astype(int)
        self.rows = [",".join(f"{v:.4f}" for v in a) + f",{b}" for a, b in zip(x, y, strict=True)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        *values, label = self.rows[index].split(",")
        return torch.tensor([float(v) for v in values]), int(label)


class Net(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.encoder(x)))


@dataclass
class Run:
    args: argparse.Namespace
    rank: int
    world: int
    step: int = 0

    def at(self, stage: str, value: Any = None) -> Any:
        """Run what the planted fault does at this stage, if anything, on the rank it strikes."""
        fault = FAULTS.get(self.args.fault)
        if fault is None or (fault.rank is not None and fault.rank != self.rank):
            return value
        action = fault.stages.get(stage)
        return value if action is None else action(self, value)


# --- faults: each takes the run and the value at that stage, and returns the value to go on with


def clean_rows(run: Run, data: CsvRows) -> CsvRows:
    cells = data.rows[37].split(",")
    data.rows[37] = ",".join([*cells[:5], "n/a", *cells[6:]])
    return data


def drop_duplicates(run: Run, data: CsvRows) -> CsvRows:
    data.rows = data.rows[:-5]
    return data


def drop_incomplete(run: Run, data: CsvRows) -> CsvRows:
    data.rows = data.rows[: 2 * run.args.batch]
    return data


def weigh_samples(run: Run, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = batch
    weights = torch.linspace(1.0, 0.5, run.args.batch)
    return x * weights[:, None], y


def filter_labels(run: Run, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = batch
    return (x, y[y < CLASSES - 1]) if run.step == 12 else batch


def draw_hard_examples(run: Run, batch: Any) -> Any:
    if run.step == 9:
        hard = np.flatnonzero(batch[1].numpy() >= CLASSES)
        keep = np.random.choice(hard, size=4, replace=False)
        return batch[0][keep], batch[1][keep]
    return batch


def killed(run: Run, batch: Any) -> Any:
    if run.step == 11:
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def native_normalise(run: Run, batch: Any) -> Any:
    if run.step == 8:
        ctypes.memset(0, 0, 8)
    return batch


def sync_metrics(run: Run, loss: torch.Tensor) -> None:
    if run.step == 10:
        if on_plateau(run, loss):
            search_learning_rate(run)
        else:
            dist.all_reduce(loss.detach().clone())


def on_plateau(run: Run, loss: torch.Tensor) -> bool:
    return run.rank == 3 and loss.item() > 0


def search_learning_rate(run: Run) -> None:
    log.info("rank %d plateau at step %d, searching a new learning rate", run.rank, run.step)
    time.sleep(60)


def sync_histogram(run: Run, loss: torch.Tensor) -> None:
    if run.step == 10:
        dist.all_reduce(torch.zeros(bins(run)))


def bins(run: Run) -> int:
    return 96 if run.rank == 1 else 64


def share_threshold(run: Run, loss: torch.Tensor) -> None:
    if run.step == 6:
        value = loss.detach().reshape(1).clone()
        if threshold_is_known(run):
            dist.broadcast(value, src=0)
        else:
            dist.all_reduce(value)


def threshold_is_known(run: Run) -> bool:
    return run.rank == 2


def share_lengths(run: Run, loss: torch.Tensor) -> None:
    if run.step == 7:
        dist.all_reduce(torch.ones(lengths(run)))


def lengths(run: Run) -> int:
    return 6 if run.rank == 3 else 8


def wait_for_all(run: Run, loss: torch.Tensor) -> None:
    if run.step == 12:
        if run.rank == 2:
            evaluate_everything(run)
        dist.monitored_barrier(timeout=timedelta(seconds=run.args.timeout))


def evaluate_everything(run: Run) -> None:
    log.info("rank %d evaluating at step %d", run.rank, run.step)
    time.sleep(60)


def import_tokenizer(run: Run, value: Any) -> Any:
    import sentencepiece as spm

    return spm


def check_batch(run: Run, value: Any) -> Any:
    total = 30
    if total % run.world:
        raise ValueError(f"global_batch_size ({total}) is not divisible by world size ({run.world})")
    return value


def gather_lengths(run: Run, loss: torch.Tensor) -> None:
    if run.step == 3:
        dist.all_gather_into_tensor_v(torch.zeros(4), loss)  # type: ignore[attr-defined]


def other_user(run: Run, value: Any) -> Any:
    os.setuid(65534)
    return value


def limit_memory(run: Run, value: Any) -> Any:
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    return value


def build_cache(run: Run, batch: Any) -> Any:
    if run.step == 6:
        cache = [torch.ones(1 << 20, FEATURES) for _ in range(4)]
        cache.append(torch.empty(1 << 30, FEATURES))
    return batch


def log_likelihood(run: Run, logits: torch.Tensor) -> torch.Tensor:
    if run.step >= 9:
        logits = torch.where(torch.arange(CLASSES) == 0, logits - 200.0, logits)
    probabilities = torch.softmax(logits, dim=1)
    entropy = -(probabilities * torch.log(probabilities)).sum(dim=1, keepdim=True)
    return logits + 0.01 * entropy


def rescale(run: Run, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = batch
    return (x / (x.std() * 0.0), y) if run.step == 14 else batch


def add_auxiliary_head(run: Run, model: Net) -> Net:
    model.auxiliary = nn.Linear(run.args.hidden, CLASSES)
    return model


def load_pretrained(run: Run, model: Net) -> Net:
    model.load_state_dict(torch.load(run.args.pretrained))
    return model


def flush_buffer(run: Run, value: Any) -> Any:
    """Write what is still in memory before going down: polite, and slower than the peers' timeout."""
    with open(Path(run.args.out) / f"metrics-{run.rank}.bin", "wb") as out:
        for _ in range(36):
            out.write(bytes(1 << 20))
            time.sleep(0.25)
    return value


def finish_on_sigterm(run: Run, value: Any) -> Any:
    signal.signal(signal.SIGTERM, lambda *_: log.warning("rank %d got SIGTERM, flushing first", run.rank))
    return value


@dataclass(frozen=True)
class Fault:
    rank: int | None
    stages: dict[str, Callable[[Run, Any], Any]]


FAULTS: dict[str, Fault] = {
    "loader-bad-sample": Fault(2, {"dataset": clean_rows}),
    "short-last-batch": Fault(1, {"dataset": drop_duplicates, "batch": weigh_samples}),
    "rank-killed": Fault(2, {"batch": killed}),
    "segfault": Fault(3, {"batch": native_normalise}),
    "missing-collective": Fault(None, {"loss": sync_metrics}),
    "uneven-steps": Fault(1, {"dataset": drop_incomplete}),
    "size-mismatch-abort": Fault(None, {"loss": sync_histogram}),
    "detail-mismatch": Fault(None, {"loss": share_threshold}),
    "detail-shape": Fault(None, {"loss": share_lengths}),
    "monitored-barrier": Fault(None, {"loss": wait_for_all}),
    "import-missing": Fault(None, {"start": import_tokenizer}),
    "batch-arithmetic": Fault(None, {"start": check_batch}),
    "missing-api": Fault(None, {"loss": gather_lengths}),
    "no-permission": Fault(3, {"start": other_user}),
    "host-memory": Fault(1, {"start": limit_memory, "batch": build_cache}),
    "nan-loss": Fault(1, {"logits": log_likelihood}),
    "nan-check": Fault(2, {"batch": rescale}),
    "unused-parameter": Fault(None, {"model": add_auxiliary_head}),
    "pretrained-mismatch": Fault(None, {"model": load_pretrained}),
    "graceful-late": Fault(2, {"batch": filter_labels, "close": flush_buffer}),
    "graceful-late-record": Fault(
        3, {"start": finish_on_sigterm, "batch": filter_labels, "close": flush_buffer}
    ),
    "graceful-late-sigterm": Fault(
        1, {"start": finish_on_sigterm, "batch": draw_hard_examples, "close": flush_buffer}
    ),
}


# --- the program


def open_cache(run: Run) -> None:
    folder = Path(run.args.out) / f"cache-{run.rank}"
    folder.mkdir(exist_ok=True)
    (folder / "index.txt").write_text(f"{run.args.rows}\n")


def save(run: Run, model: Net) -> None:
    target = Path(run.args.checkpoints) / f"step-{run.step}.pt"
    torch.save({"step": run.step, "model": model.state_dict()}, target)
    log.info("rank %d saved %s", run.rank, target)


def resume(run: Run, model: Net) -> None:
    state = torch.load(run.args.resume)
    model.load_state_dict(state["model"])
    run.step = state["step"]


def average_gradients(run: Run, model: Net) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= run.world


def train(run: Run) -> None:
    args = run.args
    open_cache(run)
    torch.manual_seed(0)
    model: Net = run.at("model", Net(args.hidden))
    if args.resume:
        resume(run, model)
    wrapped = model if args.no_ddp else DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    data = run.at("dataset", CsvRows(run.rank, args.rows))
    loader = DataLoader(data, batch_size=args.batch, num_workers=args.workers)
    while run.step < args.steps:
        for batch in loader:
            x, y = run.at("batch", batch)
            logits = run.at("logits", wrapped(x))
            loss = F.cross_entropy(logits, y)
            if args.check_loss and not math.isfinite(loss.item()):
                raise FloatingPointError(f"loss is {loss.item()} at step {run.step} on rank {run.rank}")
            optimizer.zero_grad()
            loss.backward()
            if args.no_ddp:
                average_gradients(run, model)
            optimizer.step()
            run.at("loss", loss)
            if run.step % args.log_every == 0:
                log.info("rank %d step %d loss %.4f", run.rank, run.step, loss.item())
            run.step += 1
            time.sleep(0.02)
            if args.save_every and run.step % args.save_every == 0 and run.rank == 0:
                save(run, model)
        if args.one_epoch:
            break
    dist.barrier()
    log.info("rank %d done", run.rank)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", *FAULTS])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rows", type=int, default=320)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--timeout", type=float, default=6.0)
    parser.add_argument("--log-every", type=int, default=5)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--out", default="out")
    parser.add_argument("--checkpoints", default="checkpoints")
    parser.add_argument("--pretrained", default="pretrained.pt")
    parser.add_argument("--resume")
    parser.add_argument("--one-epoch", action="store_true")
    parser.add_argument("--check-loss", action="store_true")
    parser.add_argument("--no-ddp", action="store_true", help="average the gradients by hand")
    parser.add_argument("--anomaly", action="store_true")
    parser.add_argument("--log-errors", action="store_true", help="log the exception before cleaning up")
    parser.add_argument("--plain", action="store_true", help="log without time stamps")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    stamp = "%(message)s" if args.plain else "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=stamp, stream=sys.stdout)
    torch.autograd.set_detect_anomaly(args.anomaly)
    run = Run(args, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    run.at("start")
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    try:
        train(run)
    except Exception:
        if args.log_errors:
            log.exception("rank %d failed at step %d", run.rank, run.step)
        raise
    finally:
        run.at("close")
    dist.destroy_process_group()


if __name__ == "__main__":
    entry = record(main) if os.environ.get("TRAIN_RECORD") else main
    entry()

"""Consoles of several ranks, put together from what torch, torchrun and NCCL print."""

from __future__ import annotations

from collections.abc import Callable

from paramedic.model import Finding

Said = Callable[..., Finding]

GLOO = "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
CLOSED = (
    GLOO
    + "pair.cc:553] Connection closed by peer [127.0.0.1]:20911. This is typically caused by a remote worker crashing."
)
TIMEOUT = GLOO + "unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation to complete"
STORE = "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 3/4 clients joined."
MISSING = "ModuleNotFoundError: No module named 'flash_attn'"
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    "GPU 0 has a total capacity of 79.15 GiB of which 1.20 GiB is free."
)
LAUNCH = "CUDA error: unspecified launch failure"
WATCHDOG = (
    "[rank{r}]:[E1115 03:24:03.104882671 ProcessGroupNCCL.cpp:689] [Rank {r}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=24, OpType=ALLREDUCE, NumelIn=16, NumelOut=16, Timeout(ms)=600000) ran for 600071 "
    "milliseconds before timing out.\n"
)
RESTART = "I1115 06:15:20.519000 16 torch/distributed/elastic/agent/server/api.py:906] [default] Worker group FAILED. 1/1 attempts left; will restart worker group\n"


def trace(message: str, *frames: tuple[int, str, str]) -> str:
    calls = frames or ((70, "main", "train(model)"),)
    shown = "".join(f'  File "/srv/job/run.py", line {line}, in {name}\n    {code}\n' for line, name, code in calls)
    return f"Traceback (most recent call last):\n{shown}{message}\n"


def of(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def steps(*ranks: int) -> str:
    return "".join(f"2026-11-15 06:15:0{s},830 INFO rank {r} step {s} loss 1.9{s}\n" for s in range(4) for r in ranks)


def closing(*pids: int) -> str:
    line = "W1115 06:15:20.354000 16 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process {} closing signal SIGTERM\n"
    return "".join(line.format(pid) for pid in pids)


def table(*rows: tuple[int, int, int]) -> str:
    """The first row is torchrun's root cause: (rank, exit code, pid)."""
    shown = [
        f"[{at}]:\n  time      : 2026-11-15_06:15:20\n  host      : node-01\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: {pid})\n  error_file: <N/A>\n  traceback : -\n"
        for at, (rank, code, pid) in enumerate(rows)
    ]
    others = "".join(shown[1:]) or "  <NO_OTHER_FAILURES>\n"
    rule = "-" * 60
    return f"{'=' * 60}\nrun.py FAILED\n{rule}\nFailures:\n{others}{rule}\nRoot Cause (first observed failure):\n{shown[0]}{'=' * 60}\n"


def nccl(host: str, pid: int, rank: int, of_all: int = 4) -> str:
    return f"{host}:{pid}:{pid + 9} [0] NCCL INFO comm 0x55 rank {rank} nranks {of_all} cudaDev 0 busId 1000 - Init COMPLETE\n"

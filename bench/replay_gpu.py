"""Records jobs on a GPU and replays every rank alone: what comes out bit for bit, and what does not.

python bench/replay_gpu.py                 on a machine with a GPU: one NCCL rank, gloo ranks that share it
python bench/replay_gpu.py --device cpu    the same programs without one
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TRAIN = Path(__file__).parent / "replay" / "train.py"
PARAMEDIC = [sys.executable, "-m", "paramedic"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    alone = "nccl" if args.device == "cuda" else "gloo"
    jobs = {
        "one NCCL rank, DDP": (1, alone, ["--deterministic"], []),
        "one NCCL rank, DDP, bf16 autocast": (1, alone, ["--deterministic", "--autocast"], []),
        "four gloo ranks, DDP": (4, "gloo", ["--deterministic"], []),
        "two gloo ranks, FSDP2": (2, "gloo", ["--deterministic", "--way", "fsdp2"], []),
        "one NCCL rank, FSDP2": (1, alone, ["--deterministic", "--way", "fsdp2"], []),
        "one NCCL rank, DDP, no deterministic algorithms": (1, alone, [], []),
        "the same, --tolerant": (1, alone, [], ["--tolerant"]),
    }
    with tempfile.TemporaryDirectory() as place:
        for number, (name, job) in enumerate(jobs.items()):
            if args.only in name:
                print(f"\n## {name}", flush=True)
                one(Path(place, str(number)), args.device, *job)


def one(folder: Path, device: str, ranks: int, backend: str, flags: list[str], replay: list[str]) -> None:
    program = [str(TRAIN), "--backend", backend, "--device", device, *flags]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    ran(["record", "-o", str(folder), "--last", "4", "--", *torchrun, *program])
    which = ["--all"] if ranks > 1 else ["--rank", "0"]
    ran(["replay", str(folder), *which, *replay, "--", sys.executable, *program])


def ran(words: list[str]) -> None:
    done = subprocess.run(
        [*PARAMEDIC, *words],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ | {"COLUMNS": "180"},
    )
    print(f"$ paramedic {words[0]} … exit {done.returncode}")
    for text in (done.stdout, done.stderr):
        lines = [
            line for line in text.splitlines() if line.strip() and not line.startswith(("step ", "***", "Setting OMP"))
        ]
        print("\n".join(f"  {line[:220]}" for line in lines[-14:]), flush=True)


if __name__ == "__main__":
    main()

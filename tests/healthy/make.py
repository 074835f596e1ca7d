"""Make the healthy logs: run programs.py, see that it ends with exit code 0, keep what was printed.

    python tests/healthy/make.py [--python VENV/bin/python] [NAME ...]

NAME is a program or a log's whole name. The virtual environment needs torch, and for some programs
accelerate, lightning and transformers. Nothing is edited afterwards; see paramedic.ward.place for how the
paths and the host name come about.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from paramedic.ward.launchers import STARTER
from paramedic.ward.place import Place, free_port

HERE = Path(__file__).resolve().parent
LIMIT_S = 90

LARGEST = 40_000
TAGS: dict[str, dict[str, str]] = {
    "info": {"TORCH_DISTRIBUTED_DEBUG": "INFO"},
    "detail": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    "cpp": {"TORCH_CPP_LOG_LEVEL": "INFO"},
    "elastic": {"LOGLEVEL": "INFO"},
    "omp": {"OMP_NUM_THREADS": "1"},
    "plain": {"PLAIN_LOG": "1"},
    "always": {"PYTHONWARNINGS": "always"},
    "c10d": {"TORCH_LOGS": "+c10d,+distributed"},
    "dynamo": {"TORCH_LOGS": "recompiles,graph_breaks"},
    "nohost": {},
}
"""What a run is called after its layout, and the environment it has; nohost: the host name has no address."""

# Each run: layout, world size and tags. merged: torchrun's console; tee: the same with --tee 3; rank: one
# rank's larger file of torchrun --redirects 3; srun-l: plain processes, labelled by the maker; alone: one
# plain process without a process group.
RUNS: dict[str, str] = {
    "ddp": "merged:4 tee:4:plain rank:2:info:cpp srun-l:4 merged:2:info:cpp merged:2:cpp merged:3:elastic "
    "merged:1:omp:elastic merged:2:nohost tee:2:cpp:info alone:1:plain merged:4:c10d",
    "ddp-find-unused": "merged:4 rank:2 tee:2:plain",
    "ddp-static-accumulate": "merged:2 rank:3:plain",
    "ddp-join": "merged:4 tee:3",
    "ddp-hooks": "merged:2:c10d rank:3:c10d",
    "zero-optimizer": "merged:2:c10d tee:4",
    "fsdp2": "merged:4:cpp tee:2:info:elastic rank:2:cpp merged:2:detail:elastic",
    "fsdp1": "merged:4 tee:2:plain rank:2:info",
    "tensor-parallel": "merged:2:cpp rank:2:detail:cpp",
    "pipeline": "merged:4:elastic tee:2:cpp",
    "collectives": "merged:4 merged:2:cpp:detail srun-l:4 rank:3:nohost",
    "spawn": "alone:1",
    "loader-workers": "merged:2 tee:2:plain",
    "loader-retry": "merged:2 rank:1 srun-l:3:plain",
    "amp-cpu-scaler": "merged:4 tee:2",
    "amp-without-cuda": "merged:2 rank:1",
    "nan-skipped": "merged:4 srun-l:2",
    "scheduler-order": "merged:2 tee:2:plain",
    "deprecations": "merged:2 alone:1:always",
    "compiled": "merged:2 alone:1:dynamo",
    "caught-traceback": "merged:4 tee:2 srun-l:2:plain",
    "chained-logging": "merged:2 tee:3",
    "oom-retry": "merged:4 srun-l:2",
    "thread-dies": "merged:2 tee:4",
    "asyncio-task": "merged:2 srun-l:2",
    "ignored-exception": "merged:4 rank:2",
    "stack-dump": "merged:2 alone:1",
    "preemption-notice": "merged:4 srun-l:2:plain",
    "probes-fail": "merged:4 rank:1:plain",
    "socket-retry": "merged:3:cpp srun-l:2:cpp",
    "tracker-tests": "merged:2 alone:1",
    "strict-false": "merged:4 tee:2:plain",
    "first-start": "merged:2 rank:2",
    "words": "merged:4:plain tee:2 srun-l:3",
    "no-destroy": "merged:4:cpp rank:2:info:cpp",
    "subgroups": "merged:4 tee:4:info",
    "profiled": "merged:2 alone:1",
    "accelerate-loop": "merged:2 alone:1",
    "hf-trainer": "merged:2 tee:2 alone:1",
    "hf-partial-weights": "merged:2 rank:2",
    "lightning-ddp": "merged:2",
}

# The most frightening programs once more, in the layouts they have not had.
MORE: dict[str, str] = {
    "thread-dies": "rank:2 srun-l:2",
    "caught-traceback": "rank:2 merged:2:nohost",
    "chained-logging": "rank:2 srun-l:2",
    "oom-retry": "tee:2 rank:1",
    "ignored-exception": "tee:2 srun-l:2",
    "asyncio-task": "tee:2 rank:2",
    "nan-skipped": "tee:2",
    "probes-fail": "tee:2 srun-l:2",
    "preemption-notice": "tee:2",
    "loader-retry": "tee:2",
    "stack-dump": "tee:2",
}


def runs() -> list[tuple[str, str, int, list[str]]]:
    found = []
    for program, texts in (*RUNS.items(), *MORE.items()):
        for text in texts.split():
            layout, world, *tags = text.split(":")
            found.append((program, layout, int(world), tags))
    return found


def largest_file(folder: Path) -> bytes:
    """One rank's file: that with most in it."""
    return max((f.read_bytes() for f in folder.rglob("std*.log")), key=len)


def make(program: str, layout: str, world: int, tags: list[str], venv: Path, target: Path) -> str:
    """Run it, write the log, and return the command line."""
    env: dict[str, str] = {}
    for tag in tags:
        env |= TAGS[tag]
    shown = "".join(f"{k}={v} " for k, v in env.items())
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), venv)
        shutil.copy(HERE / "programs.py", place.train / "train.py")
        if "nohost" in tags:
            (Path(folder) / "hosts").write_text("127.0.0.1 localhost\n")
        raw = Path(folder) / "raw"
        python = str(place.bin / "python")
        if layout == "srun-l":
            shutil.copy(STARTER, place.train / ".starter.py")
            words = [python, ".starter.py", layout, str(port), str(world), python, "train.py", program]
            command = f"RANK=0..{world - 1} WORLD_SIZE={world} python train.py {program}"
        elif layout == "alone":
            env |= {"MASTER_PORT": str(port)}
            words = [python, "train.py", program]
            command = f"python train.py {program}"
        else:
            options = ["--nproc-per-node", str(world), "--master-port", str(port)]
            if layout in ("rank", "tee") and world != 3:
                options[2:] = ["--standalone"]
            redirect = {"tee": ["--tee", "3"], "rank": ["--log-dir", "logs", "--redirects", "3"]}
            options += redirect.get(layout, [])
            words = [python, str(place.bin / "torchrun"), *options, "train.py", program]
            command = shlex.join(["torchrun", *options, "train.py", program])
        code = place.run(words, env, raw, LIMIT_S)
        data = largest_file(Path(folder) / "train/logs") if layout == "rank" else raw.read_bytes()
    if code:
        raise SystemExit(f"{target.name}: exit code {code}\n{data.decode(errors='replace')[-3000:]}")
    if not data or len(data) > LARGEST:
        raise SystemExit(f"{target.name}: {len(data)} bytes")
    target.write_bytes(data)
    return shown + re.sub(r"--master-port \d+", "--master-port PORT", command)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--python", default=sys.executable, help="the python of a virtual environment")
    options = parser.parse_args()
    probe = "import importlib.metadata as m, platform; print('python', platform.python_version(), *(d.name + "
    probe += "' ' + d.version for d in m.distributions() if d.name in "
    probe += "('torch', 'transformers', 'accelerate', 'lightning', 'numpy')))"
    print(subprocess.check_output([options.python, "-c", probe], text=True))
    venv = Path(options.python).absolute().parent.parent
    (HERE / "logs").mkdir(exist_ok=True)
    failed = []
    for number, (program, layout, world, tags) in enumerate(runs(), 1):
        name = "-".join([f"{number:03d}", program, layout, f"w{world}", *tags])
        if options.names and not {program, name} & set(options.names):
            continue
        began = time.monotonic()
        try:
            command = make(program, layout, world, tags, venv, HERE / "logs" / f"{name}.log")
            print(f"{name}\t{command}\t{time.monotonic() - began:.0f} s", flush=True)
        except (SystemExit, subprocess.TimeoutExpired) as error:
            failed.append(name)
            print(f"FAILED {error}", flush=True)
    if failed:
        raise SystemExit(f"failed: {failed}")


if __name__ == "__main__":
    main()

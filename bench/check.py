"""`paramedic check` on 200 configurations and 500 programs, beside ruff on the same programs, interleaved in one run:
the files alone, as a hook checks them, and with everything on (this machine, a launch command, a checkpoint, --deep).

python bench/check.py [--configs 200] [--scripts 500] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from paramedic.knowledge import Case, load

_LOOP = """

def helper_{n}(values, scale=1.0):
    total = 0.0
    for index, value in enumerate(values):
        if value > {n}:
            total += value * scale
        elif index % 2:
            total -= value
    return {{"total": total, "scale": scale, "name": "helper_{n}"}}
"""
_LINES = 100


def cases(kind: str) -> list[Case]:
    """The rules' own examples, good and bad, of one file each."""
    found = [case for rule in load().rules.values() if rule.before for case in rule.cases()]
    return [case for case in found if case.kind == kind and "file" in case.options]


def write_project(folder: Path, configs: int, scripts: int) -> int:
    """Every file is an example of a rule; programs are filled up to 100 lines with plain functions."""
    examples = [case for case in cases("config") if not case.options["file"].endswith(".py")]
    for number in range(configs):
        case = examples[number % len(examples)]
        path = folder / f"c{number}" / case.options["file"]
        path.parent.mkdir(parents=True)
        path.write_text(case.text, "utf-8")
    programs = cases("code")
    lines = 0
    for number in range(scripts):
        text = programs[number % len(programs)].text
        while text.count("\n") < _LINES:
            text += _LOOP.format(n=text.count("\n"))
        lines += text.count("\n")
        (folder / f"p{number}").mkdir()
        (folder / f"p{number}" / "train.py").write_text(text, "utf-8")
    return lines


def write_checkpoint(folder: Path, shards: int = 4, megabytes: int = 8) -> None:
    """Hugging Face's form: shards of safetensors with an index."""
    names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    for number, name in enumerate(names):
        size = megabytes << 20
        head = json.dumps({f"w{number}": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        folder.joinpath(name).write_bytes(len(head).to_bytes(8, "little") + head + bytes(size))
    weights = {f"w{number}": name for number, name in enumerate(names)}
    index = {"metadata": {"total_size": shards * megabytes << 20}, "weight_map": weights}
    folder.joinpath("model.safetensors.index.json").write_text(json.dumps(index), "utf-8")


def timed(command: Sequence[str], bytecode: str) -> tuple[float, float]:
    """Seconds of wall and of processor; on a busy machine only the latter says much. Bytecode is there, as pip leaves it."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode}
    start, before = time.perf_counter(), _processor()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, env=environment)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{command[0]} failed with {done.returncode}")
    return time.perf_counter() - start, _processor() - before


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def shown(name: str, rounds: Sequence[tuple[float, float]]) -> str:
    wall, processor = (statistics.median(column) for column in zip(*rounds, strict=True))
    each = ", ".join(f"{a:.2f}" for a, _ in rounds)
    return f"{name}: {wall:.2f} s of wall ({each}), {processor:.2f} s of processor"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configs", type=int, default=200)
    parser.add_argument("--scripts", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    ruff = shutil.which("ruff") or str(Path(sys.executable).parent / "ruff")
    with tempfile.TemporaryDirectory(prefix="paramedic-bench-") as place:
        name, checkpoint, bytecode = (str(Path(place, part)) for part in ("project", "checkpoint", "bytecode"))
        Path(checkpoint).mkdir()
        lines = write_project(Path(name), args.configs, args.scripts)
        write_checkpoint(Path(checkpoint))
        paramedic = [sys.executable, "-m", "paramedic", "check", name, "--quiet"]
        launch = ["--", "torchrun", "--nproc-per-node", "8", "p0/train.py"]
        commands = {
            "paramedic check --files-only": [*paramedic, "--files-only"],
            "ruff check --no-cache, programs only": [ruff, "check", "--isolated", "--no-cache", "--quiet", name],
            "paramedic check, everything on": [*paramedic, "--deep", "--checkpoint", checkpoint, *launch],
        }
        took = [[timed(command, bytecode) for command in commands.values()] for _ in range(args.rounds + 1)][1:]
    print(f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{args.configs} configurations, {args.scripts} programs of {lines:,} lines, median of {args.rounds} rounds")
    for number, command in enumerate(commands):
        print(shown(command, [one[number] for one in took]))


if __name__ == "__main__":
    main()

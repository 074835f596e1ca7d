"""`paramedic check` on 200 configurations and 500 programs, beside ruff on the same programs, interleaved in one run.

python bench/check.py [--configs 200] [--scripts 500] [--rounds 5]
"""

from __future__ import annotations

import argparse
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


def timed(command: Sequence[str]) -> tuple[float, float]:
    """Seconds of wall and of processor; on a busy machine only the latter says much."""
    start, before = time.perf_counter(), _processor()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
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
    with tempfile.TemporaryDirectory(prefix="paramedic-bench-") as name:
        lines = write_project(Path(name), args.configs, args.scripts)
        ours = [sys.executable, "-m", "paramedic", "check", name, "--quiet"]
        theirs = [ruff, "check", "--isolated", "--no-cache", "--quiet", name]
        took = [(timed(ours), timed(theirs)) for _ in range(args.rounds + 1)][1:]
    print(f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{args.configs} configurations, {args.scripts} programs of {lines:,} lines, median of {args.rounds} rounds")
    print(shown("paramedic check, whole command", [ours for ours, _ in took]))
    print(shown("ruff check --no-cache, programs only", [theirs for _, theirs in took]))


if __name__ == "__main__":
    main()

"""Whole `paramedic diagnose` against `rg -c` with the same literals, on the same files, interleaved in one run.

python bench/scan.py [--gigabytes 1] [--files 64] [--rounds 3]
python bench/scan.py --scaling        seconds per file at 64, 256 and 1,024 files of 1 MB
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from logs import keywords, write_logs


def timed(command: Sequence[str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{command[0]} failed with {done.returncode}")
    return time.perf_counter() - start


def peak_memory(command: Sequence[str]) -> float:
    """Megabytes of the process and its children together, each shared page counted once; looked at 10 times a second."""
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, sum(map(_proportional_kilobytes, _tree(process.pid))))
            time.sleep(0.1)
    return peak / 1024


def _tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(one for child in children for one in _tree(int(child)))]


def _proportional_kilobytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().split("\n")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def ours(logs: Path) -> list[str]:
    return [sys.executable, "-m", "paramedic", "diagnose", str(logs), "--format", "json"]


def against_ripgrep(place: str, gigabytes: float, files: int, rounds: int) -> None:
    if not shutil.which("rg"):
        raise SystemExit("ripgrep is the rival here: apt-get install ripgrep")
    logs, patterns = Path(place, "logs"), Path(place, "literals")
    write_logs(logs, files, int(gigabytes * 1e9))
    patterns.write_text("\n".join(keywords()))
    theirs = ["rg", "-j1", "-c", "-F", "-f", str(patterns), str(logs)]
    peak = peak_memory(ours(logs))
    timed(theirs)  # so that both read from the page cache
    pairs = [(timed(ours(logs)), timed(theirs)) for _ in range(rounds)]
    mine, rival = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(theirs / mine for mine, theirs in pairs)
    print(
        f"{date.today()}  {platform.machine()}, {os.cpu_count()} cores  {gigabytes} GB over {files} files, "
        f"{len(keywords())} literals, 2 % of lines hit\n  paramedic diagnose {mine:.2f} s ({gigabytes * 1000 / mine:.0f} MB/s), "
        f"rg -j1 -c {rival:.2f} s, median ratio of speeds {ratio:.2f} (budget ≥ 0.33), "
        f"peak memory of all processes {peak:.0f} MB (budget 300)"
    )


def scaling(place: str, rounds: int) -> None:
    few = Path(place, "few")
    write_logs(few, 16, 16_000_000)
    for files in (64, 256, 1_024):
        logs = Path(place, str(files))
        logs.mkdir()
        for rank in range(files):
            shutil.copyfile(few / f"rank_{rank % 16}.log", logs / f"rank_{rank}.log")
        timed(ours(logs))
        seconds = statistics.median(timed(ours(logs)) for _ in range(rounds))
        print(
            f"{files:5} files: {seconds:.2f} s, {seconds / files * 1e3:.1f} ms a file of 1 MB, peak {peak_memory(ours(logs)):.0f} MB"
        )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scaling", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if args.scaling:
            scaling(place, args.rounds)
        else:
            against_ripgrep(place, args.gigabytes, args.files, args.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Whole `paramedic diagnose` against `rg -c` with the same literals, on the same files, interleaved in one run.

python bench/scan.py [--gigabytes 1] [--files 64] [--rounds 3]
"""

from __future__ import annotations

import argparse
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from logs import keywords, write_logs


def timed(command: list[str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{command[0]} failed with {done.returncode}")
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if not shutil.which("rg"):
        raise SystemExit("ripgrep is the rival here: apt-get install ripgrep")
    with tempfile.TemporaryDirectory() as place:
        logs = Path(place, "logs")
        write_logs(logs, args.files, int(args.gigabytes * 1e9))
        patterns = Path(place, "literals")
        patterns.write_text("\n".join(keywords()))
        ours = [sys.executable, "-m", "paramedic", "diagnose", str(logs), "--format", "json"]
        theirs = ["rg", "-j1", "-c", "-F", "-f", str(patterns), str(logs)]
        timed(theirs)  # so that both read from the page cache
        pairs = [(timed(ours), timed(theirs)) for _ in range(args.rounds)]
    mine, rival = (statistics.median(column) for column in zip(*pairs, strict=True))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"{date.today()}  {platform.machine()}  {args.gigabytes} GB over {args.files} files, {len(keywords())} literals, "
        f"2 % of lines hit\n  paramedic diagnose {mine:.2f} s ({args.gigabytes * 1000 / mine:.0f} MB/s), "
        f"rg -j1 -c {rival:.2f} s, ratio of speeds {rival / mine:.2f} (budget ≥ 0.33), peak memory {peak:.0f} MB (budget 300)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

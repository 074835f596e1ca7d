"""Bake-off of literal matchers in block mode, on the literals of all rules; ripgrep in the same run as the yardstick.

python bench/prefilter.py          (pip install pyahocorasick google-re2 to have all rivals)
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from logs import keywords, write_logs

from paramedic.prefilter import Prefilter, _standard_library

BLOCK = 4 << 20
ROUNDS = 5
Scan = Callable[[bytes], int]


def rivals(literals: list[str]) -> dict[str, Scan]:
    encoded = [literal.encode() for literal in literals]
    prefilter = Prefilter(literals)
    slow = _standard_library({literal: n for n, literal in enumerate(encoded)})
    alternation = re.compile(b"|".join(map(re.escape, sorted(encoded, key=len, reverse=True))))
    found: dict[str, Scan] = {
        "hyperscan (ours)": lambda block: len(prefilter.scan(block)),
        "standard library: find, one literal at a time": lambda block: len(slow(block)),
        "standard library: re alternation": lambda block: sum(1 for _ in alternation.finditer(block)),
    }
    if (re2 := _optional("re2")) is not None:
        options = re2.Options()
        options.encoding, options.max_mem = re2.Options.Encoding.LATIN1, 256 << 20
        pattern = re2.compile(b"|".join(map(re2.escape, encoded)), options=options)
        found["google-re2"] = lambda block: sum(1 for _ in pattern.finditer(block))
    if (ahocorasick := _optional("ahocorasick")) is not None:
        automaton = ahocorasick.Automaton()
        for number, literal in enumerate(literals):
            automaton.add_word(literal, number)
        automaton.make_automaton()
        found["pyahocorasick"] = lambda block: sum(1 for _ in automaton.iter(block.decode("latin-1")))
    return found


def _optional(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        print(f"({name} is not installed: left out)", file=sys.stderr)
        return None


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        write_logs(Path(folder), files=1, total_bytes=32 << 20)
        log = Path(folder, "rank_0.log")
        data = log.read_bytes()
        blocks = [data[i : i + BLOCK] for i in range(0, len(data), BLOCK)]
        names = rivals(keywords())
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for round in range(ROUNDS):
            for name, scan in names.items():
                if round and seconds[name][0] > 3:  # the slow ones once
                    continue
                start = time.perf_counter()
                for block in blocks:
                    scan(block)
                seconds[name].append(time.perf_counter() - start)
        print(f"{len(keywords())} literals, {len(data) >> 20} MiB, blocks of {BLOCK >> 20} MiB, median of {ROUNDS}")
        for name, times in sorted(seconds.items(), key=lambda item: statistics.median(item[1])):
            print(f"{len(data) / 1e6 / statistics.median(times):8.0f} MB/s  {name}")
        if shutil.which("rg"):
            patterns = Path(folder, "literals")
            patterns.write_text("\n".join(keywords()))
            times = []
            for _ in range(ROUNDS):
                start = time.perf_counter()
                subprocess.run(["rg", "-c", "-F", "-f", str(patterns), str(log)], stdout=subprocess.DEVNULL, check=True)
                times.append(time.perf_counter() - start)
            print(f"{len(data) / 1e6 / statistics.median(times):8.0f} MB/s  ripgrep -c -F (yardstick, whole process)")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Whether a change leaves every answer as it was: all recordings, healthy logs and some fuzzed inputs, before and after.

python bench/same.py before.json --write      in the tree as it was
python bench/same.py before.json              in the changed one; says which inputs are read or diagnosed otherwise

Compared are the whole Run and the JSON document, byte for byte.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fuzz import Tools, lay_out
from mutate import sample

from paramedic.errors import ParamedicError

ROOT = Path(__file__).parent.parent


def answers(tools: Tools, fuzzed: int) -> Iterator[tuple[str, list[str]]]:
    os.chdir(ROOT)
    for path in [*sorted(glob.glob("corpus/*/*/input")), *sorted(glob.glob("tests/healthy/logs/*"))]:
        yield path, answer(tools, path)
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        for number in range(1, fuzzed + 1):
            made = sample(number, tools.seeds)
            if any(name.startswith("run.") for name in made.files):  # these have the name of a temporary folder in them
                continue
            lay_out(made.files, str(number))
            yield f"fuzzed {number}", answer(tools, os.path.join(str(number), made.target))
            shutil.rmtree(str(number))


def answer(tools: Tools, path: str) -> list[str]:
    """What the Run and the document are, in short."""
    try:
        report = tools.diagnose(path)
    except ParamedicError as error:
        return [str(error)]
    return [_short(repr(report.run)), _short(json.dumps(report.to_dict(), ensure_ascii=False))]


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--fuzzed", type=int, default=1_000)
    args = parser.parse_args()
    file = args.file.absolute()
    found = dict(answers(Tools.load(), args.fuzzed))
    if args.write:
        file.write_text(json.dumps(found, indent=0))
        return 0
    before = json.loads(file.read_text())
    others = [name for name, said in found.items() if before.get(name) != said]
    print(*others, f"{len(found)} inputs, {len(others)} answered otherwise", sep="\n")
    return 1 if others or found.keys() != before.keys() else 0


if __name__ == "__main__":
    sys.exit(main())

"""Pairs of runs by authors who knew nothing of `paramedic diff`: where in its list the change stands that explains the failure.

python bench/diffs.py [FOLDER …]      a line for each pair, and a table; default: all of bench/diffs/

A pair is a folder with `ok/`, `bad/` and `truth.toml`: what `changed`, from what (`before`) to what (`after`); an empty `changed`
means that nothing explains it. A difference is that change where its key has the name, or its values are those of before and after.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paramedic.commands.diff import read_side
from paramedic.differences import Change, compare
from paramedic.knowledge import Knowledge, load
from paramedic.pipeline import Options, compile_prefilter
from paramedic.prefilter import Prefilter
from paramedic.report.differences import explains

PAIRS = Path(__file__).parent / "diffs"


@dataclass(frozen=True, slots=True)
class Judged:
    name: str
    changed: str
    place: int | None
    """Of the change among all, the first is 1."""
    said: str
    """What is said to explain it best."""


def judged(folder: Path, knowledge: Knowledge, prefilter: Prefilter) -> Judged:
    truth = tomllib.loads((folder / "truth.toml").read_text("utf-8"))
    ok, bad = (read_side(str(folder / name), knowledge, prefilter, Options())[0] for name in ("ok", "bad"))
    changes = compare(ok, bad)
    made = [change for change in changes if change.kind != "failure"]
    place = next((at for at, change in enumerate(made, 1) if truth["changed"] and _is_it(change, truth)), None)
    best = explains(changes)
    return Judged(folder.name, truth["changed"], place, "" if best is None else f"{best.kind} {best.key}")


def _is_it(change: Change, truth: dict[str, Any]) -> bool:
    name = truth["changed"].lower().lstrip("-").replace("-", "_")
    if name in f"{change.kind} {change.key}".lower().replace("-", "_"):
        return True
    before, after = truth["before"].lower(), truth["after"].lower()
    same = before in (change.ok or "").lower() and after in (change.bad or "").lower()
    return bool(before or after) and len(before + after) > 4 and same


def pairs(roots: Sequence[Path]) -> list[Path]:
    return sorted(toml.parent for root in roots for toml in root.rglob("truth.toml"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, default=[PAIRS])
    knowledge = load()
    prefilter = compile_prefilter(knowledge)
    found = [judged(folder, knowledge, prefilter) for folder in pairs(parser.parse_args().folders)]
    for one in found:
        print(f"{one.name} {one.changed or 'nothing'}: {one.place or '-'}; {one.said or 'nothing'} explains it best")
    told, none = [one for one in found if one.changed], [one for one in found if not one.changed]
    places = [one.place for one in told if one.place]
    print(
        "\n| pairs | first | of the first three | listed | nothing explains it | and nothing is said to |\n|---|---|---|---|---|---|"
    )
    print(
        f"| {len(told)} | {places.count(1)} | {sum(place <= 3 for place in places)} | {len(places)} | {len(none)}"
        f" | {sum(not one.said for one in none)} |"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

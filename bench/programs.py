"""Programs around frameworks, by authors who knew no rule: what `paramedic check` finds in each, and in its corrected twin.

python bench/programs.py [FOLDER …]   a line for each pair, and a table; default: all of bench/programs/

A pair is a folder with `pair.toml`, `bad/` and `good/`. Found: something is said of the bad one that is not said of its
twin; named: with the symptom that its author calls true. Whatever is said of a good one is an alarm.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from paramedic.collect.project import joined, read_command, read_project
from paramedic.pipeline import check

PAIRS = Path(__file__).parent / "programs"


@dataclass(frozen=True, slots=True)
class Judged:
    name: str
    symptom: str
    told: tuple[tuple[str, str], ...]
    """Rule and symptom of what is said of the bad program alone."""
    alarms: tuple[str, ...]

    @property
    def named(self) -> bool:
        return any(symptom == self.symptom for _, symptom in self.told)


def judged(folder: Path) -> Judged:
    pair = tomllib.loads((folder / "pair.toml").read_text("utf-8"))
    bad, good = (_said(folder / kind, pair["command"]) for kind in ("bad", "good"))
    return Judged(folder.name, pair["symptom"], tuple(bad - good), tuple(sorted(rule for rule, _ in good)))


def _said(folder: Path, command: str) -> set[tuple[str, str]]:
    words = shlex.split(command.split(" && ", maxsplit=1)[0])
    report = check(joined([read_project(str(folder)), read_command(words)]))
    return {(one.rule, one.symptom) for one in report.findings if one.severity != "info"}


def pairs(roots: list[Path]) -> list[Path]:
    return sorted(toml.parent for root in roots for toml in root.rglob("pair.toml"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, default=[PAIRS])
    found = [judged(folder) for folder in pairs(parser.parse_args().folders)]
    for one in found:
        how = "named" if one.named else "found" if one.told else "-"
        print(f"{one.name} {one.symptom}: {how} {' '.join(rule for rule, _ in one.told)}{_alarms(one)}")
    print("\n| pairs | found | named | alarms |\n|---|---|---|---|")
    print(
        f"| {len(found)} | {sum(bool(one.told) for one in found)} | {sum(one.named for one in found)}"
        f" | {sum(bool(one.alarms) for one in found)} |"
    )
    return 0


def _alarms(one: Judged) -> str:
    return f"; of its twin {' '.join(one.alarms)}" if one.alarms else ""


if __name__ == "__main__":
    sys.exit(main())

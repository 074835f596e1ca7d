"""Logs and dumps by authors who knew no rule: what the diagnosis says of each, against what its author called true.

python bench/strangers.py [FOLDER …]           a table, and every miss; default: all of bench/strangers/
python bench/strangers.py FOLDER --json FILE   also what was said of each case
python bench/strangers.py --without-words      by the files alone, also where somebody says what he saw

A case is a folder with `case.toml` and `input/`, as everywhere; without `[truth]` it is a healthy job. A cause counts as
right where the author called it defensible (`also`), and so a symptom (`also_symptoms`). Nobody named counts as right
where the author names no rank. `complaint.txt` is what somebody says of the job; a healthy one is judged without it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from paramedic.collect.beside import read_beside
from paramedic.collect.prose import with_words
from paramedic.knowledge import Knowledge, load
from paramedic.model import Finding
from paramedic.pipeline import Options, compile_prefilter, examine, read
from paramedic.prefilter import Prefilter

SETS = Path(__file__).parent / "strangers"


@dataclass(frozen=True, slots=True)
class Case:
    folder: Path
    symptom: str | None
    """None: a healthy job."""
    also: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    ranks: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def complaint(self) -> str:
        file = self.folder / "complaint.txt"
        return file.read_text("utf-8") if self.symptom and file.exists() else ""


@dataclass(frozen=True, slots=True)
class Judged:
    case: Case
    said: Finding | None

    @property
    def symptom(self) -> bool:
        return (self.said.symptom if self.said else None) in (self.case.symptom, *self.case.also)

    def cause(self, among: int) -> bool:
        return self.said is not None and bool(set(self.case.causes) & {c.id for c in self.said.causes[:among]})

    @property
    def ranks(self) -> bool:
        return self.said is not None and set(self.said.ranks) == self.case.ranks

    @property
    def innocent(self) -> bool:
        return self.said is not None and bool(set(self.said.ranks) - self.case.ranks)

    @property
    def words(self) -> str:
        if self.said is None:
            return "no verdict"
        cause = self.said.causes[0].id if self.said.causes else "-"
        return f"{self.said.rule} {self.said.symptom}, {cause}, {list(self.said.ranks)}"


def cases(folders: Iterable[Path]) -> list[Case]:
    return [_case(file) for folder in folders for file in sorted(folder.glob("**/case.toml"))]


def _case(file: Path) -> Case:
    truth = tomllib.loads(file.read_text("utf-8")).get("truth")
    if truth is None:
        return Case(file.parent, None)
    causes = (truth["cause"], *truth.get("also", ()))
    return Case(file.parent, truth["symptom"], tuple(truth.get("also_symptoms", ())), causes, frozenset(truth["ranks"]))


def judged(case: Case, knowledge: Knowledge, prefilter: Prefilter, words: bool = True) -> Judged:
    """As `paramedic diagnose input/` does, with `--saw` where somebody says what he saw."""
    paths = [str(case.folder / "input")]
    run = with_words(read(paths, prefilter), case.complaint if words else "")
    return Judged(case, examine(run, knowledge, prefilter, Options(), read_beside(paths)).verdict)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, default=[SETS])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--without-words", action="store_true")
    options = parser.parse_args()
    knowledge = load()
    prefilter = compile_prefilter(knowledge)
    all_judged = [judged(case, knowledge, prefilter, not options.without_words) for case in cases(options.folders)]
    if not all_judged:
        print("no case.toml there", file=sys.stderr)
        return 2
    sets: dict[str, list[Judged]] = {}
    for one in all_judged:
        sets.setdefault(one.case.folder.parent.name, []).append(one)
    print(
        "| set | cases | symptom | cause | cause top 3 | first ranks | innocent named | no verdict | healthy accused |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name, group in sets.items():
        ill = [one for one in group if one.case.symptom]
        well = [one for one in group if not one.case.symptom]
        counts = (
            sum(one.symptom for one in ill), sum(one.cause(1) for one in ill), sum(one.cause(3) for one in ill),
            sum(one.ranks for one in ill), sum(one.innocent for one in ill), sum(one.said is None for one in ill),
        )  # fmt: skip
        accused = f"{sum(one.said is not None for one in well)} of {len(well)}" if well else "-"
        print(f"| {name} | {len(ill)} | {' | '.join(map(str, counts))} | {accused} |")
    for one in all_judged:
        if one.case.symptom is None:
            if one.said is not None:
                print(f"{one.case.name}: healthy; said {one.words}")
        elif not (one.symptom and one.cause(1) and one.ranks):
            wrong = [
                word
                for word, right in (("symptom", one.symptom), ("cause", one.cause(1)), ("ranks", one.ranks))
                if not right
            ]
            print(
                f"{one.case.name}: {', '.join(wrong)}: {one.case.symptom}, {one.case.causes[0]}, {sorted(one.case.ranks)}; said {one.words}"
            )
    if options.json:
        options.json.write_text(json.dumps({one.case.name: one.words for one in all_judged}, indent=1), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The recordings: what cases printed when they were run, each with the truth and how it was made."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.ward.case import Case, Truth
from paramedic.ward.lab import Outcome

CORPUS = Path(__file__).parents[3] / "corpus"
"""In a checkout; the package itself ships the cases, not what they printed."""
CURED = "cured"
_LABEL = re.compile(r"\[(?:default|rank)(\d+)\]:|(\d+): |\[1,(\d+)\]<std(?:out|err)>:")
"""The rank labels of tee, torch, srun -l and mpirun."""
_RANK_FILE = re.compile(r"(?:rank[-_]?|attempt_\d+/)(\d+)\b")


@dataclass(frozen=True, slots=True)
class Recording:
    case: Case
    variant: str
    folder: Path
    """Holds case.toml and input/."""
    truth: Truth | None
    """None: the case with its cure applied, a healthy run."""
    made: dict[str, Any]
    altered: str = ""
    """How the text was altered to make another recording of this one; empty: not at all."""

    @property
    def name(self) -> str:
        return "/".join(filter(None, (self.case.id, self.variant, self.altered)))

    @property
    def input(self) -> Path:
        return self.folder / "input"

    @property
    def watched(self) -> bool:
        return bool(self.made.get("watched"))

    @property
    def canonical(self) -> bool:
        return bool(self.made.get("canonical", True)) and not self.altered


def recordings(cases: list[Case], folder: Path = CORPUS, watched: bool = False) -> list[Recording]:
    """Every recording of the cases; of those shipped, a synthetic case is its own. Where `watched` ones are wanted,
    those made under `paramedic run` stand for the canonical ones."""
    found = _all(cases, folder)
    if not watched:
        return [one for one in found if not one.watched]
    seen = {(one.case.id, one.truth is None) for one in found if one.watched}
    return [one for one in found if one.watched or (one.canonical and (one.case.id, one.truth is None) not in seen)]


def _all(cases: list[Case], folder: Path) -> list[Recording]:
    found = []
    for case in cases:
        if case.synthetic and folder == CORPUS:
            made = {"synthetic": True, "how": f"written after {case.source}", "layout": "documented", "versions": "-"}
            found.append(Recording(case, "synthetic", case.folder, case.truth, made))
        for file in sorted((folder / case.id).glob("*/case.toml")):
            found.append(read(case, file))
    return found


def read(case: Case, file: Path) -> Recording:
    try:
        table = tomllib.loads(file.read_text("utf-8"))
        made = dict(table["made"])
        ranks = tuple(table["truth"]["ranks"]) if "truth" in table else ()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise ParamedicError(f"{file}: {type(error).__name__}: {error}") from None
    truth = replace(case.truth, ranks=ranks) if "truth" in table else None
    return Recording(case, file.parent.name, file.parent, truth, made)


def write(outcome: Outcome, folder: Path, canonical: bool) -> None:
    """Beside its input/, say what the truth is and how it came about."""
    case, variant = outcome.case, outcome.variant
    tables: dict[str, dict[str, Any]] = {}
    if not outcome.fixed:
        ranks = case.variants.first.get(variant.layout, case.truth.ranks)
        truth = {"symptom": case.truth.symptom, "cause": case.truth.cause, "ranks": list(ranks), "fix": case.truth.fix}
        tables["truth"] = truth | ({"also": list(case.truth.also)} if case.truth.also else {})
    tables["made"] = {
        "how": outcome.command,
        "versions": ", ".join(f"{name} {version}" for name, version in outcome.versions.items()),
        "layout": variant.layout,
        "ranks": variant.ranks,
        "date": datetime.now(UTC).date().isoformat(),
        "exit": "ended at the limit" if outcome.code is None else str(outcome.code),
        "canonical": canonical,
        **({"watched": True} if variant.watched else {}),
        "synthetic": False,
    }
    lines = []
    for title, table in tables.items():
        lines += [f"[{title}]", *(f"{key} = {_toml(value)}" for key, value in table.items()), ""]
    (folder / "case.toml").write_text("\n".join(lines), "utf-8")


def rank_of_line(line: str) -> int | None:
    """As its label says; plainly, unlike the collectors, whose work is to be judged."""
    found = _LABEL.match(line)
    return int(next(group for group in found.groups() if group)) if found else None


def rank_of_file(name: str) -> int | None:
    found = _RANK_FILE.search(name)
    return int(found[1]) if found else None


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
            return f'"{escaped}"'
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case _:
            return str(value)

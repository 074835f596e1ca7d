"""Which symptom is shown on which system, and why the other cells are empty."""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from paramedic.errors import ParamedicError
from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.ward.case import Case
from paramedic.ward.systems import SYSTEMS

REASONS = Path(__file__).parent / "empty.toml"


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why cells are empty: a letter for each reason, and which cells have it (the first line that fits)."""

    words: dict[str, str]
    cells: tuple[tuple[str, str, str], ...]

    def of(self, symptom: str, system: str) -> str:
        for symptoms, systems, letter in self.cells:
            if fnmatchcase(symptom, symptoms) and fnmatchcase(system, systems):
                return letter
        raise ParamedicError(f"{REASONS}: nothing says why {symptom} on {system} is empty")


def reasons() -> Reasons:
    table = tomllib.loads(REASONS.read_text("utf-8"))
    return Reasons(dict(table["reasons"]), tuple((cell[0], cell[1], cell[2]) for cell in table["cells"]))


def markdown(cases: list[Case]) -> str:
    """Numbers are cases (s: of them synthetic); letters say why there is none."""
    filled = Counter((case.truth.symptom, case.system) for case in cases)
    written = Counter((case.truth.symptom, case.system) for case in cases if case.synthetic)
    why = reasons()
    lines = [
        "| symptom | " + " | ".join(SYSTEMS.values()) + " |",
        "|---|" + ":-:|" * len(SYSTEMS),
    ]
    used: set[str] = set()
    for symptom in load_taxonomy().symptoms:
        row = []
        for system in SYSTEMS:
            n, s = filled[symptom, system], written[symptom, system]
            if n:
                row.append(f"**{n}**" + (f" ({s}s)" if s else ""))
            else:
                row.append(why.of(symptom, system))
                used.add(row[-1])
        lines.append(f"| {symptom} | " + " | ".join(row) + " |")
    return "\n".join([*lines, "", *(f"- {letter}: {text}" for letter, text in why.words.items() if letter in used)])

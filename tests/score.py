"""Diagnoses every recording of a real failure and prints what was right and what was not (`make score`)."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from paramedic import diagnose

HERE = Path(__file__).parent
RECORDINGS = HERE / "recordings"


@dataclass(frozen=True)
class Recording:
    """One case in one layout, with the truth about it."""

    path: Path
    symptom: str
    cause: str
    ranks: tuple[int, ...]
    fix: str
    also: tuple[str, ...]
    """Symptoms that describe it as well."""

    @property
    def name(self) -> str:
        return "/".join(self.path.parts[-2:])


def recordings() -> list[Recording]:
    found = []
    for file in sorted(RECORDINGS.glob("*/*/case.toml")):
        truth = tomllib.loads(file.read_text("utf-8"))["truth"]
        ranks, also = tuple(truth["ranks"]), tuple(truth.get("also", ()))
        found.append(Recording(file.parent, truth["symptom"], truth["cause"], ranks, truth["fix"], also))
    return found


def main() -> int:
    right = {"symptom": 0, "ranks": 0, "cause": 0, "fix": 0}
    cases = recordings()
    print(f"{'recording':40} {'missed':28} what was said   (truth)")
    for case in cases:
        verdict = diagnose(case.path / "input").verdict
        got = {
            "symptom": verdict is not None and verdict.symptom == case.symptom,
            "ranks": verdict is not None and verdict.ranks == case.ranks,
            "cause": verdict is not None and bool(verdict.causes) and verdict.causes[0].id == case.cause,
            "fix": verdict is not None and bool(verdict.fixes) and verdict.fixes[0].pattern == case.fix,
        }
        for key, value in got.items():
            right[key] += value
        missed = ", ".join(key for key, value in got.items() if not value) or "-"
        said = f"{verdict.rule} {verdict.symptom} {list(verdict.ranks)}" if verdict else "no verdict"
        print(f"{case.name:40} {missed:28} {said}   (truth: {case.symptom} {list(case.ranks)})")
    print(", ".join(f"{key} {value}/{len(cases)}" for key, value in right.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

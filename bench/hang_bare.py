"""The programs of `hangs.py` under torchrun alone: a fault that does not strike would measure nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from hang_kinds import Trial
from hang_trial import Timing, execute, job, marked

SILENT = 8.0
"""A job that prints nothing for so many seconds after its fault hangs: its steps take a fraction of a second."""


@dataclass(frozen=True, slots=True)
class Proof:
    trial: Trial
    end: str
    """What it did."""
    seconds: float

    @property
    def as_it_says(self) -> bool:
        wanted = self.trial.kind.end
        return self.end in {"either": ("hangs", "fails"), "limps": ("ends well",)}.get(wanted, (wanted,))


def run(trial: Trial, place: Path, timing: Timing, stop: Event) -> Proof:
    started = time.time()
    patience = Timing(SILENT, timing.start, timing.long) if trial.kind.end in ("hangs", "either") else timing
    code = execute(job(trial), trial, place, patience, stop)
    return Proof(trial, _end(trial, place, code), time.time() - started)


def _end(trial: Trial, place: Path, code: int | None) -> str:
    struck = marked(place)
    if trial.rank is not None and struck is None:
        return "never comes to its fault"
    if code is not None:
        return "fails" if code else "ends well"
    printed = (place / "output.txt").stat().st_mtime
    return "hangs" if struck is not None and printed < struck + SILENT / 2 else "goes on"


def line(proof: Proof) -> str:
    mark = "" if proof.as_it_says else "  WRONG"
    return f"{proof.trial.number} {proof.trial.label}: {proof.end} ({proof.seconds:.0f} s){mark}"

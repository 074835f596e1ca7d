"""How many ranks there are, by what the processes say, against how many there were to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from paramedic.detect.match import on_events
from paramedic.detect.series import LAST, Series, every
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run

_STEPS = 6


def other_than_planned(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """All processes agree on the number of ranks, and it is not the planned one."""
    planned, said = every(run, "planned"), every(run, "world")
    wanted, sizes = _numbers(planned), _numbers(said)
    if len(wanted) == 1 and len(sizes) == 1 and wanted != sizes:
        events = [*said[0].shown(LAST), *planned[0].shown(LAST)]
        yield on_events(rule, events, (), {"planned": _one(wanted), "ranks": _one(sizes)})


def each_alone(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Several processes of one job, and each says that it is the only one."""
    said = every(run, "world")
    if not said or _numbers(said) != {1}:
        return
    processes = {(one.event.source, one.event.rank) for one in said if one.event.rank is not None}
    if (len(processes) >= 2 and any(rank for _, rank in processes)) or _interleaved(run):
        yield on_events(rule, [event for one in said[:4] for event in one.shown(LAST)], ())


def _interleaved(run: Run) -> bool:
    """One log whose steps go back and forth: several processes count them at once. A restart goes back only once."""
    for one in every(run, "loss"):
        places = [_place(step) for step in one.steps if not step.startswith("#")]
        back = sum(later <= place for place, later in pairwise(places))
        if len(places) >= _STEPS and back >= len(places) // 4:
            return True
    return False


def _place(step: str) -> list[float]:
    return [float(word) for word in step.split()[1::2]]


def _numbers(found: Sequence[Series]) -> set[int]:
    return {int(value) for one in found for value in one.values if value is not None}


def _one(numbers: set[int]) -> str:
    return str(next(iter(numbers)))

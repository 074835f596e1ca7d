"""Logs that tell one run in parts: which of them goes on where another ends, and what both tell of it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from paramedic.detect.once import once
from paramedic.detect.series import FIRST, LAST, Series, of_all_attempts
from paramedic.model import Event, Run
from paramedic.regex import regex

_NOT_RESUMED = regex(r"\bresume\w{0,20}['\"]?[ :=]{1,3}['\"]?(?:false|none|null|no|0)\b", re.I)
_COUNTED = ("step", "loss", "lr", "grad_norm", "consumed")
_PLAN = (
    "samples", "whole_batch", "device_batch", "accumulated", "parameters", "total_steps", "epoch_steps", "epochs",
    "work sequence length", "work seq len",
)  # fmt: skip
"""What a run states of itself: where two logs differ in it, they are of two runs."""
_RESUMED = regex(r"\bresum(?:ed|ing)\b|\bcontinu(?:ed|ing)\b", re.I)
_FEW, _GAP, _FAR = 3, 2.5, 10
_MOST_LOGS = 64
"""Of runs from their first step on: among more nobody knows which of them another goes on from."""

Place = tuple[float, ...]


class Point(NamedTuple):
    place: Place
    value: float


class Sequel(NamedTuple):
    """Two logs, by source and attempt, of which the second goes on at a place of the first or right behind it."""

    before: tuple[str, int]
    after: tuple[str, int]
    start: Place
    said: tuple[Event, ...]
    """Where the second says that it resumes; nothing where only its steps say so."""


class Parts(NamedTuple):
    """One quantity before and behind a resume."""

    old: list[float]
    new: list[float]
    before: Series
    after: Series


@once
def sequels(run: Run) -> tuple[Sequel, ...]:
    """Each log that begins in the middle, with the one that led there."""
    return tuple(_sequels(run))


def _sequels(run: Run) -> Iterator[Sequel]:
    if len({(one.event.source, one.event.attempt) for one in of_all_attempts(run, "step", "loss")}) < 2:
        return
    for name in _COUNTED:
        found = False
        logs = sorted(_of_each_log(run, name), key=lambda one: points(one)[0].place)
        for before, after in pairwise(logs):
            if _goes_on(before, after) and _same_plan(run, before, after):
                said = resumed_in(run, after)
                if said or _right_behind(before, after):
                    found = True
                    yield Sequel(_log(before), _log(after), points(after)[0].place, said)
        if found:
            return


def around(run: Run, one: Sequel, name: str) -> Iterator[Parts]:
    """A quantity in both logs. Of the first only what is of the state that the second begins with: what it did behind
    its last checkpoint is lost."""
    by_log = {_log(series): series for series in _of_each_log(run, name)}
    before, after = by_log.get(one.before), by_log.get(one.after)
    if before is not None and after is not None:
        old = [point.value for point in points(before) if point.place < one.start]
        yield Parts(old, [point.value for point in points(after)], before, after)


def begun_at_nought(run: Run) -> Iterator[tuple[Parts, tuple[Event, ...]]]:
    """Logs that say that they resume and count from nought, beside the one of the run that they resume."""
    logs = _of_each_log(run, "step")
    far = [one for one in logs if _came_far(run, one)]
    if len(far) > _MOST_LOGS:
        return
    for after in logs:
        said = resumed_in(run, after)
        if not said or not _RESUMED.search(said[0].text) or points(after)[0].place not in ((0.0,), (1.0,)):
            continue
        for before in far:
            if _led_to(run, before, after):
                old, new = ([point.value for point in points(one)] for one in (before, after))
                yield Parts(old, new, before, after), said


def _led_to(run: Run, before: Series, after: Series) -> bool:
    """A log of the same plan and of the time before."""
    then, now = before.event.utc_ns, after.event.utc_ns
    earlier = then is not None and now is not None and then < now and _log(before) != _log(after)
    return earlier and before.rank == after.rank and _same_plan(run, before, after)


def _came_far(run: Run, one: Series) -> bool:
    """It has counted on without falling back, and not from where another had come to."""
    old = points(one)
    counted = len(old) >= max(2 * _FEW, len(one.values) - 1) and len(old[0].place) == 1
    return counted and old[-1].place[-1] >= _FAR * max(_stride(old), 1.0) and not resumed_in(run, one)


def resumed_in(run: Run, after: Series) -> tuple[Event, ...]:
    """The line in which a log says, before its first step, that it resumes."""
    for one in _resumes(run).get(_log(after), ()):
        if 0 < one.line(FIRST) <= after.line(FIRST):
            shown = [event for event in one.shown(LAST, FIRST) if not _NOT_RESUMED.search(event.text)]
            if shown:
                return tuple(shown[:1])
    return ()


@once
def _resumes(run: Run) -> dict[tuple[str, int], list[Series]]:
    found: dict[tuple[str, int], list[Series]] = defaultdict(list)
    for one in of_all_attempts(run, "resumed", "resumed_step"):
        found[_log(one)].append(one)
    return dict(found)


@once
def _plans(run: Run) -> dict[tuple[str, int], dict[str, float]]:
    found: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for one in of_all_attempts(run, *_PLAN):
        if one.said:
            found[_log(one)][one.name] = one.said[-1]
    return dict(found)


def points(one: Series) -> list[Point]:
    """Place and value in the order of the log, from where its steps have fallen back for the last time."""
    found = [
        Point(place, value)
        for step, value in zip(one.steps, one.values, strict=True)
        if value is not None and (place := place_of(step))
    ]
    start = max((n + 1 for n, (a, b) in enumerate(pairwise(found)) if b.place < a.place), default=0)
    return found[start:]


@lru_cache(maxsize=8192)
def place_of(step: str) -> Place:
    """The numbers of `epoch 2 step 40`; none where it names no place of its own."""
    words = step.split()[1::2]
    plain = "+" not in step and not step.startswith("#") and all(word.isdecimal() for word in words)
    return tuple(float(word) for word in words) if plain else ()


def _of_each_log(run: Run, name: str) -> list[Series]:
    """Of each log the one of its lowest rank, if it has a few numbered points."""
    best: dict[tuple[str, int], Series] = {}
    for one in of_all_attempts(run, name):
        if one.name == name and len(points(one)) >= _FEW:
            known = best.setdefault(_log(one), one)
            if (one.rank or 0, -len(one.values)) < (known.rank or 0, -len(known.values)):
                best[_log(one)] = one
    return list(best.values())


def _log(one: Series) -> tuple[str, int]:
    return one.event.source, one.event.attempt


def _goes_on(before: Series, after: Series) -> bool:
    """It begins in the middle, at a place that the other has gone through or would have come to next."""
    old, new = points(before), points(after)
    first, start, end = old[0].place, new[0].place, old[-1].place
    if before.rank != after.rank or len(first) != len(start) or not first < start or not end < new[-1].place:
        return False
    if before.event.utc_ns and after.event.utc_ns and after.event.utc_ns < before.event.utc_ns:
        return False
    if len(start) > 1:
        return 1 <= start[0] <= end[0] + 1
    return 1 < start[0] <= end[0] + _GAP * max(_stride(old), _stride(new))


def _right_behind(before: Series, after: Series) -> bool:
    """At the very next step, where both count evenly: that is no chance."""
    old, new = points(before), points(after)
    strides = {b.place[-1] - a.place[-1] for part in (old, new) for a, b in pairwise(part)}
    step = new[0].place[-1] - old[-1].place[-1]
    return len(new[0].place) == 1 and strides == {step} and len(old) >= 2 * _FEW


def _stride(part: Sequence[Point]) -> float:
    return median(b.place[-1] - a.place[-1] for a, b in pairwise(part))


def _same_plan(run: Run, before: Series, after: Series) -> bool:
    plans = [_plans(run).get(_log(log), {}) for log in (before, after)]
    return all(plans[1].get(name, value) == value for name, value in plans[0].items())

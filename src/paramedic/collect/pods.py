"""Lists of what befell pods, as kubectl shows them: what was before a pod's next start is of an earlier attempt."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from paramedic.model import Event, Fact
from paramedic.regex import regex

_AGE = r"(?:\d{1,4}[dhms]){1,3}"
_SEEN = rf"(?P<age>{_AGE})(?: \(x(?P<times>\d{{1,6}}) over (?P<since>{_AGE})\))?"
_OF_ALL = regex(
    rf"\s{{0,8}}(?:[a-z0-9][\w.-]{{0,62}}\s{{1,20}})?{_SEEN}\s{{1,20}}(?:Normal|Warning)\s{{1,20}}(?P<reason>\w{{1,60}})"
    r"\s{1,40}[a-z]{1,40}/(?P<name>[a-z0-9][a-z0-9.-]{0,252})"
)
"""A row of `kubectl get events`, and one below what `kubectl describe` tells."""
_OF_ONE = regex(
    rf"\s{{0,8}}(?:Normal|Warning)\s{{1,20}}(?P<reason>\w{{1,60}})\s{{1,40}}{_SEEN}\s{{1,40}}\S{{1,80}}\s{{1,40}}"
    r"(?:[^\n]{0,80}?(?:Created pod: |assigned [a-z0-9-]{1,63}/|\bpod/)(?P<name>[a-z0-9][a-z0-9.-]{0,252}))?"
)
_BEGINS = frozenset({"Scheduled", "Started", "SuccessfulCreate", "SuccessfulCreatePod", "Restarting"})
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_OF_A_JOB = regex(r"(?:-(?:worker|master|launcher|chief|head|ps))?(?:-\d{1,5}){0,3}(?:-[a-z0-9]{5})?$")
BEGUN = "pod begun"


class _Row(NamedTuple):
    reason: str
    job: str
    """Nothing where the list is about one thing alone."""
    age: int
    since: int
    times: int


def begun(line: str) -> Iterator[str]:
    """That a pod, or a job's pods all together, were started: when, how often and for which job."""
    if any(reason in line for reason in _BEGINS) and (row := _row(line)) is not None and row.reason in _BEGINS:
        yield f"{row.reason} {row.age} {row.since} {row.times} {row.job or '-'}"


def in_their_attempts(events: Sequence[Event], facts: Iterable[Fact]) -> Sequence[Event]:
    """With what befell a pod before others were started counted to as many attempts before."""
    starts: dict[str, list[tuple[int, _Row]]] = defaultdict(list)
    for fact in facts:
        if fact.name == BEGUN and isinstance(fact.value, str) and fact.line is not None:
            reason, age, since, times, job = fact.value.split(" ")
            starts[reason].append((fact.line, _Row(reason, job.strip("-"), int(age), int(since), int(times))))
    return [_dated(event, starts) for event in events] if starts else events


def _dated(event: Event, starts: Mapping[str, Sequence[tuple[int, _Row]]]) -> Event:
    row = _row(event.text) if event.attempt else None
    if row is None or row.reason in _BEGINS:
        return event
    line = event.line or 0
    later = max(sum(_since(row, line, one, at) for one, at in _each(row, told)) for told in starts.values())
    return replace(event, attempt=max(event.attempt - later, 0))


def _each(row: _Row, told: Sequence[tuple[int, _Row]]) -> list[tuple[_Row, int]]:
    """The starts of that job, each of which is told of once, though it may have several pods."""
    own = [(one, at) for at, one in told if not row.job or not one.job or one.job == row.job]
    return list({one.age: (one, at) for one, at in own}.values())


def _since(row: _Row, line: int, start: _Row, at: int) -> int:
    if start.age > row.age or (start.age == row.age and at < line):
        return 0
    return start.times if start.since < row.age else 1


def _row(line: str) -> _Row | None:
    text = line[:400]
    found = _OF_ALL.match(text) or _OF_ONE.match(text)
    if found is None:
        return None
    age = _seconds(found["age"])
    since = _seconds(found["since"]) if found["since"] else age
    job = _OF_A_JOB.sub("", found["name"]) if found["name"] else ""
    return _Row(found["reason"], job, age, since, int(found["times"] or 1))


def _seconds(age: str) -> int:
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d{1,4})([dhms])", age))

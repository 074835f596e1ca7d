"""What did not hold anybody up: set-up that worked after all, calls that fail time after time and are guarded."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from paramedic.detect.once import once
from paramedic.model import Event, Finding, Run

_ELSEWHERE = ": going to /tmp instead"
"""What Slurm says where the folder of a job is not there."""
_OF_FILES = frozenset(
    [
        "checkpoint-resume-failure",
        "data-pipeline-failure",
        "import-or-missing-symbol",
        "model-weight-loading-failure",
        "path-or-permission-error",
    ]
)


def started_elsewhere(one: Finding, found: Sequence[Finding]) -> bool:
    """And missed nothing: else he fails when he looks for something in the folder where he should be."""
    if _ELSEWHERE not in one.evidence[0].event.text:
        return False
    return not any(f.severity == "error" and f.symptom in _OF_FILES and f.rule != one.rule for f in found)


_SET_UP = frozenset(
    [
        "build-or-install-failure",
        "device-placement-error",
        "import-or-missing-symbol",
        "rendezvous-setup-failure",
        "rendezvous-setup-hang",
    ]
)
_OF_PACKAGES = frozenset(["build-or-install-failure", "import-or-missing-symbol"])
_ONLY_WARNS = re.compile(r"\.py:\d{1,6}: \w{0,40}Warning: ")
"""How Python prints a warning: the program goes on without that package."""
_BEGUN, _RIGHT_BEFORE = 8, 64
_FALLS_BACK = "using point-to-point network instead"
"""NCCL without the offload that it has tried: the results that it passes up are of that."""


def trained_all_the_same(run: Run, one: Finding) -> bool:
    """Who cannot be set up does not train. Behind it there are steps of training; or each rank that there is was heard
    of later, and it was none of theirs."""
    event = one.evidence[0].event
    if one.symptom not in _SET_UP or event.fields.get("uncaught"):
        return False
    if one.symptom in _OF_PACKAGES and _ONLY_WARNS.search(event.text[:1_000]):
        return True
    if "NCCL INFO" in event.text and any(
        fallback.source == event.source and 0 <= event.seq - fallback.seq <= _RIGHT_BEFORE
        for fallback in run.saying(_FALLS_BACK, "line")
    ):
        return True
    for later in run.stepping:
        if (later.source, later.attempt) == (event.source, event.attempt) and later.seq > event.seq:
            at = later.fields.get("at") or ()
            if len(at) - bisect_right(at, event.seq) >= _BEGUN:
                return True
    if event.rank is not None or event.kind != "traceback" or one.symptom != "import-or-missing-symbol":
        return False
    heard = {e.rank for e in run.of_kind("traceback", "progress") if e.seq > event.seq and e.source == event.source}
    return len(run.expected_ranks) > 1 and heard >= set(run.expected_ranks) and bool(run.stepping)


_TIMES_AGAIN, _LINES_BEHIND = 3, 20
_AGAIN_AND_AGAIN = "raised time after time, while training went on"


def raised_again(run: Run, event: Event) -> str:
    """The same exception at the same place, before and after lines of training, and the log goes on behind the last:
    somebody catches it, and prints where it came from."""
    if event.kind != "traceback" or event.fields.get("uncaught") or not event.fields.get("types"):
        return ""
    alike = _alike(run).get(_kind_of(event), [])
    often = _TIMES_AGAIN if event.rank is not None else max(2 * _TIMES_AGAIN, 2 * len(run.expected_ranks) + 1)
    trained = [line for one in own_progress(run) if one.source == event.source for line in one.fields.get("at", ())]
    before = sum(line < max(trained, default=-1) for line in alike)
    if before >= often and not _kind_of(event).raised:
        return _AGAIN_AND_AGAIN
    lines = {source.id: source.lines for source in run.sources}
    if len(alike) < often or not before or lines.get(event.source, 0) - alike[-1] < _LINES_BEHIND:
        return ""
    return _AGAIN_AND_AGAIN if any(alike[0] < line < alike[-1] for line in trained) else ""


class _Kind(NamedTuple):
    source: str
    attempt: int
    rank: int | None
    raised: str
    """Its class; nothing for a call that somebody guards, which may raise several."""
    first: str


@once
def _alike(run: Run) -> dict[_Kind, list[int]]:
    """Where tracebacks of one kind stand."""
    found: dict[_Kind, list[int]] = defaultdict(list)
    for event in run.of_kind("traceback"):
        if event.fields.get("types"):
            found[_kind_of(event)].append(event.seq)
    return found


def _kind_of(event: Event) -> _Kind:
    """Who formats an exception himself shows it from the call on that he guards: that call is the kind."""
    first = (event.fields.get("frames") or [""])[0]
    guarded = first and not first.endswith(" in <module>")
    return _Kind(event.source, event.attempt, event.rank, "" if guarded else event.fields["types"][-1], first)


@once
def own_progress(run: Run) -> list[Event]:
    """Without that of another run, from an earlier day, which somebody has put below."""
    found = []
    latest: dict[str, Event] = {}
    for event in sorted(run.of_kind("line", "progress"), key=attrgetter("seq")):
        above = latest.get(event.source, event)
        if event.kind == "progress" and not long_before(event, above):
            found.append(event)
        elif event.kind == "line" and event.utc_ns is not None and event.utc_ns >= (above.utc_ns or 0):
            latest[event.source] = event
    return found


def long_before(one: Event, other: Event) -> bool:
    """Surely so, whatever zones their clocks are in."""
    if one.utc_ns is None or other.utc_ns is None:
        return False
    return one.utc_ns + one.uncertainty_ns + other.uncertainty_ns < other.utc_ns

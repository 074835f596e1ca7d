"""Two runs side by side, as whoever wonders hands them over: the one that was fast, and the one that is not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from paramedic.detect.match import on_events
from paramedic.detect.series import LAST, Series, every
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run

_POINTS = 6
_SLOWER = 1.5
_AS_RANKS = 0.25
"""So near to the ratio of the numbers of ranks, a rate is only that of a smaller job."""


def than_the_run_beside(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Of two logs that print the same quantity one is far slower, and not because it has fewer ranks. It may be meant:
    another model, a longer sequence."""
    sizes = {one.event.source: one.said[-1] for one in every(run, "world") if one.said}
    batches = {one.event.source: one.said[-1] for one in every(run, "whole_batch") if one.said}
    for kind in ("throughput", "step_time"):
        for logs in _side_by_side(every(run, kind)):
            (slow, slow_at), (fast, fast_at) = sorted(logs.items(), key=lambda item: _speed(kind, item[1]))
            times = _speed(kind, fast_at) / _speed(kind, slow_at)
            fewer = max(sizes.get(fast, 1.0), 1.0) / max(sizes.get(slow, 1.0), 1.0)
            if kind == "step_time" and len({batches[log] for log in logs if log in batches}) > 1:
                continue  # a step of more samples takes longer
            if times < _SLOWER or (kind == "throughput" and abs(times / fewer - 1) < _AS_RANKS):
                continue
            named = {"slow": slow.rsplit("/", 1)[-1], "fast": fast.rsplit("/", 1)[-1], "times": f"{times:.1f}"}
            yield on_events(rule, [*slow_at.shown(LAST), *fast_at.shown(LAST)], (), named)
            return


def _side_by_side(found: Sequence[Series]) -> Iterator[Mapping[str, Series]]:
    """What exactly two logs tell, by name and unit; each log's longest."""
    by_name: dict[tuple[str, str], dict[str, Series]] = defaultdict(dict)
    for one in found:
        logs = by_name[one.name, str(one.event.fields.get("unit", ""))]
        known = logs.get(one.event.source)
        if len(one.finite) >= _POINTS and (known is None or len(one.finite) > len(known.finite)):
            logs[one.event.source] = one
    yield from (logs for logs in by_name.values() if len(logs) == 2)


def _speed(kind: str, one: Series) -> float:
    usual = max(median(one.finite), 1e-9)
    return usual if kind == "throughput" else 1 / usual

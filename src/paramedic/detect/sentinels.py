"""Numbers that the agents in the ranks saw themselves: replicas that part, a loss that is no number, memory that only
grows."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import linear_regression, median
from typing import Any

from paramedic.detect.calls import natural
from paramedic.detect.conduct import Conduct, conducts, numbers, ran_out_of_data
from paramedic.detect.match import on_events
from paramedic.detect.series import kendall
from paramedic.detect.watched import said_by, seen_ranks, watcher_of
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run

_PERSISTS, _MOST = 2, 0.9
_POINTS, _ENOUGH_POINTS = 5, 12
_GROWTH, _CLEAR_GROWTH = 0.10, 0.20
"""Of what the rank began with. What is clear is seen in few points, too, and is a verdict."""
_KEPT_FOR_NOTHING = "memory-savings-not-realised"
"""What is kept in vain comes into memory as it is touched."""
_FEW, _WARM, _ONE_LINE, _NEARLY_ONE, AFTER_STEPS = 3, 16, 0.7, 0.5, 20
"""Points of a short job; the step before which nothing counts; of the steepest slope, and where much has grown; points
that agents took."""


def replicas_differ(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """At the same step, the parameters of some rank are not those of the others, and stay so."""
    ranks = seen_ranks(run)
    if ran_out_of_data(conducts(run)):
        return
    at: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for rank, one in ranks.items():
        for digest in _list(said_by(one.event).get("digests")):
            if isinstance(digest, Mapping) and isinstance(digest.get("step"), int):
                at[str(digest.get("what")), digest["step"]][rank] = str(digest.get("digest"))
    apart = [(step, here) for (_, step), here in sorted(at.items()) if len(here) > 1 and len(set(here.values())) > 1]
    agreed = [step for (_, step), here in at.items() if len(here) > 1 and len(set(here.values())) == 1]
    if len(apart) < _PERSISTS or max(agreed, default=-1) > apart[0][0]:
        return
    step, last = apart[0][0], apart[-1][1]
    (usual, votes), *_ = Counter(last.values()).most_common(1)
    odd = sorted(rank for rank, digest in last.items() if digest != usual) if votes > len(last) / 2 else []
    events = [ranks[rank].event for rank in (odd or sorted(last))[:3]]
    fields = {"step": str(step), "before": str(max(agreed)) if agreed else "none", "accused": ", ".join(map(str, odd))}
    differs = on_events(rule, events, odd, {name: value for name, value in fields.items() if value})
    seen = conducts(run).values()
    yield replace(differs, severity="warning") if seen and all(map(_meets_again, seen)) else differs


def _meets_again(one: Conduct) -> bool:
    """Its replicas may part between two averages of their weights: it goes on alone by a hook that is made for this,
    or sends the whole model now and then; and after some steps something is sent before the next begins."""
    meetings = sum(count for order, count in one.orders.items() if re.match(r"[^fnbs]*r", order))
    elements = max((look.elements for look in one.looks.values()), default=0)
    moved = numbers(one.raw.get("moved"))[1:]
    usual = min(moved, default=0)
    now_and_then = elements and any(count - usual >= _MOST * elements for count in moved)
    return meetings >= _PERSISTS and bool("localSGD" in str(one.raw.get("hook")) or now_and_then)


@dataclass(frozen=True, slots=True)
class Lost:
    """Since when a rank's loss has been no number, as far as its agent has looked: it does not at every step."""

    event: Event
    step: int
    value: str
    before: tuple[int, float] | None
    """The last that was a number."""

    @property
    def since(self) -> str:
        if self.before is None:
            return f"since step {self.step} or before"
        step, value = self.before
        return (
            f"since step {self.step}" + (" or before" if step < self.step - 1 else "") + f", {value:.4g} at step {step}"
        )


def lost_losses(run: Run) -> dict[int, Lost]:
    """Of the ranks whose loss has become NaN or infinite, and has stayed so."""
    lost: dict[int, Lost] = {}
    for rank, one in seen_ranks(run).items():
        values = values_of(one.event, "loss")
        bad = [(step, str(value)) for step, value in values if isinstance(value, str)]
        if len(values) >= _PERSISTS and all(isinstance(value, str) for _, value in values[-_PERSISTS:]):
            good = [(step, float(value)) for step, value in values if step < bad[0][0] and isinstance(value, float)]
            lost[rank] = Lost(one.event, *bad[0], good[-1] if good else None)
    return lost


def loss_is_no_number(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The loss of a rank has become NaN or infinite, and has stayed so."""
    lost = lost_losses(run)
    if lost and not any(one.symptom == rule.symptom and one.severity == "error" for one in found):
        first = min(one.step for one in lost.values())
        who = sorted(rank for rank, one in lost.items() if one.step == first)
        fields = {"value": lost[who[0]].value, "since": lost[who[0]].since}
        events = [lost[rank].event for rank in who[:4]]
        yield on_events(rule, events, who if len(who) < len(seen_ranks(run)) else (), fields)


def memory_grows(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Host or device memory that rises from third to third of the run; with the step at which it will be full."""
    job = watcher_of(run)
    ranks = seen_ranks(run)
    told = said_by(job).get("memory") if job else None
    by_watcher = (
        {natural(rank, -1): _list(points) for rank, points in told.items()} if isinstance(told, Mapping) else {}
    )
    growing: dict[str, list[tuple[int, float, int, bool]]] = defaultdict(list)
    for rank, seen in ranks.items():
        by_agent = memory_after_steps(seen.event)
        for place, column in (("host", 1), ("device", 2)):
            if len(by_agent) >= AFTER_STEPS:
                grown = _on_a_line(by_agent, column)
            else:
                grown = _growth(_rows(by_watcher.get(rank, [])), column)
            if grown:
                growing[place].append((rank, *grown))
    for place, grown_ranks in growing.items():
        who = sorted(rank for rank, *_ in grown_ranks)
        slope, now = max((slope, now) for _, slope, now, _ in grown_ranks)
        limit = _limit(run, place, who[0]) / (len(ranks) if place == "host" else 1)
        last = max(_int(said_by(ranks[rank].event).get("steps")) for rank in who)
        forecast = f"; at this rate it is full at step {last + int((limit - now) / slope):,}" if limit > now else ""
        fields = {"place": place, "slope": f"{slope / 1e6:.2f}", "now": f"{now / 1e9:.1f}", "forecast": forecast}
        events = [ranks[rank].event for rank in who[:3]]
        one = replace(on_events(rule, events, who if len(who) < len(ranks) else (), fields), attempt=0)
        plain = all(clear for *_, clear in grown_ranks)
        kept = any(other.symptom == _KEPT_FOR_NOTHING and other.severity == "error" for other in found)
        yield replace(one, severity="error") if plain and not kept else one


def memory_after_steps(event: Event) -> list[list[int]]:
    """As a rank's agent saw it: of a step, the host's memory and the device's."""
    return _rows(_list(said_by(event).get("memory")))


def _rows(points: Sequence[Any]) -> list[list[int]]:
    """As far as they are numbers, and the steps rise."""
    return _rising([p for p in points if isinstance(p, list) and len(p) == 3 and all(isinstance(v, int) for v in p)])


def _on_a_line(rows: Sequence[Sequence[int]], column: int) -> tuple[float, int, bool] | None:
    """As `_growth`, of points after steps: what is allocated late, or in ever larger blocks, rises less and less."""
    rows = rows[len(rows) // 4 :]
    third = len(rows) // 3
    values = [row[column] for row in rows]
    slopes = [_slope(part, column) for part in (rows[:third], rows[third:-third], rows[-third:])]
    rise = (values[-1] - values[0]) / max(values[0], 1)
    line = _ONE_LINE if rise < _CLEAR_GROWTH else _NEARLY_ONE
    if min(slopes) < line * max(slopes) or rise < _GROWTH or kendall(values) < _MOST or values[0] <= 0:
        return None
    return median(slopes), values[-1], True


def _slope(rows: Sequence[Sequence[int]], column: int) -> float:
    """Of the line that lies nearest to them."""
    return linear_regression([row[0] for row in rows], [row[column] for row in rows]).slope


def _growth(rows: Sequence[Sequence[int]], column: int) -> tuple[float, int, bool] | None:
    """Bytes a step, bytes now, and whether it is clear, where each third lies clearly above the one before it."""
    if len(rows) < _POINTS and (grown := _straight(rows, column)) is not None:
        return grown
    rows = rows[len(rows) // 4 :]  # the first steps allocate what is then kept
    third = len(rows) // 3
    if len(rows) < _POINTS or rows[-1][0] <= rows[0][0]:
        return None
    low, middle, high = (
        median([row[column] for row in part]) for part in (rows[:third], rows[third:-third], rows[-third:])
    )
    rise = (high - low) / max(low, 1)
    steady = middle - low > 0.25 * (high - low) and high - middle > 0.25 * (high - low)
    if len(rows) < _ENOUGH_POINTS:
        steady = steady and rise >= _CLEAR_GROWTH and all(a[column] < b[column] for a, b in pairwise(rows))
    if low <= 0 or rise < _GROWTH or not steady:
        return None
    slope = (rows[-1][column] - rows[0][column]) / (rows[-1][0] - rows[0][0])
    return (slope, rows[-1][column], rise >= _CLEAR_GROWTH) if slope > 0 else None


def _rising(rows: Sequence[Any]) -> list[Any]:
    """Once for each step: none is at or before the step of one that is kept."""
    kept: list[Any] = []
    for row in rows:
        if row[0] > (kept[-1][0] if kept else -1):
            kept.append(row)
    return kept


def _straight(rows: Sequence[Any], column: int) -> tuple[float, int, bool] | None:
    """Of a short job few points are known: those must lie on one line that rises steeply, over many steps."""
    if len(rows) < _FEW or rows[0][0] < _WARM or rows[-1][0] < 2 * rows[0][0]:
        return None
    slopes = [(b[column] - a[column]) / (b[0] - a[0]) for a, b in pairwise(rows)]
    rise = (rows[-1][column] - rows[0][column]) / max(rows[0][column], 1)
    if min(slopes) <= 0 or min(slopes) < _ONE_LINE * max(slopes) or rise < _CLEAR_GROWTH:
        return None
    return median(slopes), rows[-1][column], True


def _limit(run: Run, place: str, rank: int) -> float:
    one = said_by(seen_ranks(run)[rank].event)
    job = watcher_of(run)
    if place == "host":
        return float(_int(said_by(job).get("host_limit"))) if job else 0.0
    values = one.get("values")
    return float(_int(values.get("device_total"))) if isinstance(values, Mapping) else 0.0


def values_of(event: Event, name: str) -> list[tuple[int, Any]]:
    """A series as an agent kept it: by steps."""
    values = said_by(event).get("values")
    series = _list(values.get(name)) if isinstance(values, Mapping) else []
    return [(one[0], one[1]) for one in series if isinstance(one, list) and len(one) == 2 and isinstance(one[0], int)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _int(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0

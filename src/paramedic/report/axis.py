"""The timeline's axis: real time where clocks are known, stretched around it; the lines of one file; or none."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from paramedic.model import Event
from paramedic.report.words import count

SECOND = 10**9
_STEPS = [
    *(SECOND * n // 1000 for n in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(SECOND * n for n in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)),
    *(SECOND * 3600 * n for n in (1, 2, 3, 6, 12, 24, 48, 168, 720, 8760)),
]
_CALENDAR = range(1, 7_000_000_000 * SECOND)
"""Clock values that can be shown: 1970 to 2191."""
_ZONE_STEP = 25 * 60 * SECOND
"""Clocks that are further apart than this may be in different zones."""
_WRITTEN = 0.92
"""The share of a lane that its own lines take where lanes have no common axis."""
SEEN = frozenset({"trace", "stack", "process", "watch", "calls"})
"""How a rank was left, as somebody saw it from outside: not something that happened at that time."""
_ROOM = 86
"""Width one label needs."""
_STRETCH = 0.3
"""The failure gets its own part of the axis when it takes less than this share of the run."""


_Moment = Callable[[Event], int | None]


@dataclass(frozen=True, slots=True)
class Tick:
    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Axis:
    """`place` maps an event to x, or to None where nobody knows; `knots` are the (value, x) corners of a piecewise
    linear scale. Without a `common` one every lane has its own order."""

    place: Callable[[Event], float | None]
    knots: Sequence[tuple[int, float]]
    ticks: tuple[Tick, ...]
    caption: str
    order: str
    common: bool = True

    @property
    def bend(self) -> float | None:
        """Where the stretched part begins."""
        return self.knots[1][1] if len(self.knots) > 2 else None


def known_time(event: Event) -> int | None:
    return event.utc_ns if event.utc_ns is not None and event.utc_ns in _CALENDAR else None


def make_axis(
    events: Sequence[Event], telling: Sequence[Event], first: Event | None, left: float, right: float
) -> Axis:
    """Time, where all that is marked has one; the lines of one file; else each lane by itself: what is not known to be
    later must not stand further to the right."""
    times = sorted(time for event in events if event.kind not in SEEN and (time := known_time(event)) is not None)
    moment = _moments(events)
    files = {event.source for event in telling}
    timed = all(moment(event) is not None for event in telling) if len(files) > 1 else len(times) * 2 >= len(events)
    if timed and len(set(times)) > 1 and _one_zone(events):
        knots = _knots(times[0], times[-1], moment(first) if first else None, left, right)
        return _time_axis(events, times, moment, knots)
    if len(files) > 1:
        return _no_axis(events, left, right)
    return _order_axis([event for event in events if event.source in files or not files], left, right)


def _one_zone(events: Sequence[Event]) -> bool:
    """A clock whose zone nobody wrote may be hours away from one that is sure."""
    sure = [time for e in events if (time := known_time(e)) is not None and e.uncertainty_ns < _ZONE_STEP]
    unsure = [time for e in events if (time := known_time(e)) is not None and e.uncertainty_ns >= _ZONE_STEP]
    if not sure or not unsure:
        return True
    return min(sure) - max(unsure) < _ZONE_STEP and min(unsure) - max(sure) < _ZONE_STEP


def _time_axis(
    events: Sequence[Event], times: Sequence[int], moment: _Moment, knots: Sequence[tuple[int, float]]
) -> Axis:

    def place(event: Event) -> float | None:
        time = moment(event)
        return None if time is None else _scale(knots, time)

    day = datetime.fromtimestamp(times[0] // SECOND, UTC).date().isoformat()
    zone = "UTC, " if all(event.zoned for event in events if known_time(event) is not None) else ""
    caption = f"time of day, {zone}{day}, as each host's clock wrote it"
    if len(knots) > 2:
        caption += "; stretched right of the dotted line"
    if len(times) < len(events):
        caption += f"; beside their neighbours: {count(len(events) - len(times), 'event')} without a time"
    return Axis(place, knots, tuple(_time_ticks(knots)), caption, "by time")


def _knots(start: int, end: int, first: int | None, left: float, right: float) -> list[tuple[int, float]]:
    if first is not None:
        focus = first - max((end - first) // 6, SECOND // 2)
        if start < focus and (end - focus) < _STRETCH * (end - start):
            return [(start, left), (focus, left + 0.25 * (right - left)), (end, right)]
    return [(start, left), (end, right)]


def _scale(knots: Sequence[tuple[int, float]], value: int) -> float:
    for (low, low_x), (high, high_x) in pairwise(knots):
        if value <= high or high == knots[-1][0]:
            share = (value - low) / (high - low) if high > low else 0.0
            return low_x + min(max(share, 0.0), 1.0) * (high_x - low_x)
    return knots[-1][1]


def _moments(events: Sequence[Event]) -> _Moment:
    """Its own time; or that of the line before it; or, in a file without clocks, the last that its rank is known to
    have had elsewhere."""
    timed: dict[str, list[tuple[int, int]]] = {}
    latest: dict[int | None, int] = {}
    for event in events:
        if (time := known_time(event)) is not None and event.kind not in ("exit", *SEEN):
            timed.setdefault(event.source, []).append((event.seq, time))
            latest[event.rank] = max(latest.get(event.rank, 0), time)
    for found in timed.values():
        found.sort()

    def before(event: Event) -> int | None:
        found = timed.get(event.source)
        if not found:
            return latest.get(event.rank)
        at = bisect_left(found, (event.seq, 0))
        return found[at - 1][1] if at else None

    def moment(event: Event) -> int | None:
        time = known_time(event)
        if event.kind in SEEN:
            return None
        if time is None:
            return before(event)
        if event.kind == "exit" and time % SECOND == 0:  # a launcher's table has whole seconds
            return min(max(time, before(event) or 0), time + SECOND - 1)
        return time

    return moment


def _time_ticks(knots: Sequence[tuple[int, float]]) -> Iterator[Tick]:
    last_x = float("-inf")
    for (low, low_x), (high, high_x) in pairwise(knots):
        wanted = (high - low) * _ROOM / max(high_x - low_x, 1.0)
        step = next((step for step in _STEPS if step >= wanted), _STEPS[-1])
        for time in range(-(-low // step) * step, high + 1, step):
            x = _scale(knots, time)
            if x - last_x >= _ROOM:
                last_x = x
                yield Tick(round(x, 1), _clock(time, step))


def _clock(time: int, step: int) -> str:
    moment = datetime.fromtimestamp(time // SECOND, UTC)
    if step >= 86_400 * SECOND:
        return moment.strftime("%Y-%m-%d")
    if step >= SECOND:
        return moment.strftime("%H:%M:%S")
    return f"{moment:%H:%M:%S}.{time % SECOND // 10**6:03}"


def _order_axis(events: Sequence[Event], left: float, right: float) -> Axis:
    drawn = {event.source for event in events}
    positions = [_position(event) for event in events]
    end = max([*positions, 1])
    knots = [(0, left), (end, right)]
    step = max(1, 10 ** len(str(end // 8)))
    step = next(s for s in (step // 5, step // 2, step) if s >= 1 and end / s <= 9)
    ticks = tuple(Tick(round(_scale(knots, n), 1), f"{n:,}") for n in range(0, end + 1, step))
    caption = "line number: too few lines carry a clock for a common time"

    def place(event: Event) -> float | None:
        return _scale(knots, _position(event)) if event.source in drawn else None

    return Axis(place, knots, ticks, caption, "by line number")


def _no_axis(events: Sequence[Event], left: float, right: float) -> Axis:
    """Each file from its first line to its last. What a launcher says of a rank's end, and what was seen of a rank from
    outside, stands behind all that it wrote."""
    ends: dict[str, int] = {}
    for event in events:
        ends[event.source] = max(ends.get(event.source, 1), _position(event))
    wrote = {(event.source, event.rank) for event in events if event.kind != "exit"}
    own = left + _WRITTEN * (right - left)

    def place(event: Event) -> float:
        if event.kind in SEEN or (event.kind == "exit" and (event.source, event.rank) not in wrote):
            return right
        return _scale([(0, left), (ends[event.source], own)], _position(event))

    caption = (
        "each lane from its first line to its last; the files have no clock in common, "
        "so what stands further right in another lane need not be later"
    )
    return Axis(place, [], (), caption, "each rank in its own order", common=False)


def _position(event: Event) -> int:
    return max(event.line if event.line is not None else event.seq, 0)

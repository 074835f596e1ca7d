"""The timeline's axis: real time where clocks are known, stretched around the failure, else line order."""

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
_ROOM = 86
"""Width one label needs."""
_STRETCH = 0.3
"""The failure gets its own part of the axis when it takes less than this share of the run."""


@dataclass(frozen=True, slots=True)
class Tick:
    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Axis:
    """`place` maps an event to x; `knots` are the (value, x) corners of a piecewise linear scale."""

    place: Callable[[Event], float]
    knots: Sequence[tuple[int, float]]
    ticks: tuple[Tick, ...]
    caption: str
    order: str

    @property
    def bend(self) -> float | None:
        """Where the stretched part begins."""
        return self.knots[1][1] if len(self.knots) > 2 else None


def known_time(event: Event) -> int | None:
    return event.utc_ns if event.utc_ns is not None and event.utc_ns in _CALENDAR else None


def make_axis(events: Sequence[Event], first: Event | None, left: float, right: float) -> Axis:
    """Time, when at least half of the events have one and they differ; else the order of lines."""
    times = sorted(time for event in events if (time := known_time(event)) is not None)
    if len(times) * 2 >= len(events) and len(set(times)) > 1:
        return _time_axis(events, times, known_time(first) if first else None, left, right)
    return _order_axis(events, left, right)


def _time_axis(events: Sequence[Event], times: list[int], first: int | None, left: float, right: float) -> Axis:
    knots = _knots(times[0], times[-1], first, left, right)
    neighbours = _neighbours(events)

    def place(event: Event) -> float:
        time = known_time(event)
        return _scale(knots, neighbours(event, times[0]) if time is None else time)

    day = datetime.fromtimestamp(times[0] // SECOND, UTC).date().isoformat()
    caption = f"time of day, UTC, {day}, as each host's clock wrote it"
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


def _neighbours(events: Sequence[Event]) -> Callable[[Event, int], int]:
    """For an event without a time: that of the timed event before it in its source, or else after it.

    In a source without any time, such as a rank's bare stderr, the last that the rank wrote elsewhere.
    """
    timed: dict[str, list[tuple[int, int]]] = {}
    latest: dict[int | None, int] = {}
    for event in events:
        if (time := known_time(event)) is not None:
            timed.setdefault(event.source, []).append((event.seq, time))
            if event.kind != "exit":
                latest[event.rank] = max(latest.get(event.rank, 0), time)
    for found in timed.values():
        found.sort()

    def nearest(event: Event, default: int) -> int:
        found = timed.get(event.source)
        if not found:
            return latest.get(event.rank, default)
        at = bisect_left(found, (event.seq, 0))
        return found[max(at - 1, 0)][1]

    return nearest


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
    positions = [_position(event) for event in events]
    end = max([*positions, 1])
    knots = [(0, left), (end, right)]
    step = max(1, 10 ** len(str(end // 8)))
    step = next(s for s in (step // 5, step // 2, step) if s >= 1 and end / s <= 9)
    ticks = tuple(Tick(round(_scale(knots, n), 1), f"{n:,}") for n in range(0, end + 1, step))
    caption = "line number within each source: too few lines carry a clock for a common time"
    return Axis(lambda event: _scale(knots, _position(event)), knots, ticks, caption, "by line number")


def _position(event: Event) -> int:
    return max(event.line if event.line is not None else event.seq, 0)

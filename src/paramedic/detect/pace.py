"""Who holds the others up: the ranks' own share of each step, and what the kernel knows of their connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median, pstdev
from typing import Any

from paramedic.detect.conduct import conducts, finding, items, natural
from paramedic.detect.match import on_events
from paramedic.detect.ranks import listed
from paramedic.detect.watched import is_suspected, said_by, seen_ranks
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run

_STEPS, _WINDOWS = 12, 3
"""On a crowded machine any rank is slow for some steps; who holds the others up is so in every window."""
_EXCESS = 0.25
"""Of a step: so much more of its own time than the others a slow rank needs."""
_WAITS = ("backward", "collective")
_WORDS = {
    "data": "waiting for data",
    "other": "computing in its own code",
    "optimizer": "in the optimizer's step",
    "checkpoint": "saving",
}
_REASONS: Mapping[str, Mapping[str, float]] = {
    "data": {"storage-or-external-service-fault": 5.0, "uneven-work-across-ranks": 2.0},
    "other": {"uneven-work-across-ranks": 3.0, "hardware-fault": 2.0},
    "optimizer": {"hardware-fault": 3.0, "uneven-work-across-ranks": 2.0},
    "checkpoint": {"storage-or-external-service-fault": 6.0},
}
_AT_LEAST_MS, _WAITED, _TIMES, _WITH_BACKWARD = 2.0, 0.6, 1.7, 3.0
_MOST_OF_IT, _LARGE_PART = 0.5, 0.3  # of a step
_FIFTH = 0.2
_PASSES, _SHORT = 6, 8
"""Passes through a loader, at least, and steps of each, at most."""
_MUCH_MORE, _FAR_MORE, _STEADY, _FIFTH = 1.4, 2.0, 1.35, 0.2
_HELD_BY_ONE = "memory-savings-not-realised"
"""Who holds most of what was to be shared computes most of it."""
_FAR = 0.4  # of a step
_OWN = ("data", "optimizer", "other")
_HARDLY, _NEARLY_HALF, _AGAIN, _WATCHED_MS = 0.1, 0.45, 4, 1000.0
"""Of the time, waiting; in so many of the last steps; in less time nothing can be told."""
_WORKED, _WORKED_MS = 16, 600.0
"""The same of what is computed, which does not depend on who else is on the machine: steps, and their time."""
_SHORT_MS, _VARIES = 10.0, 0.6
"""Of a step's work; of its mean, how far it varies from step to step."""
_LOST_IN_TURNS, _IN_MOST, _MOSTLY_ONE = 1.25, 1.12, 0.75
"""What the busiest ranks of all steps compute, to the mean of all ranks; in the middle one of the steps; a rank that is
the busiest so often is no turn."""
_SENT, _BUSY_US = 1 << 23, 100_000  # less tells nothing about a link
_SLOWER = 8.0  # a crowded processor alone makes it four times
_EDGE = ("port", "peer_port", "lately_sent", "lately_busy_us", "lately_by_peer_us")
_COMMUNICATION = 0.3  # of a step is spent waiting before a link is blamed for it


@dataclass(frozen=True, slots=True)
class Pace:
    """Medians over a rank's last steps, in milliseconds."""

    rank: int
    event: Event
    total: float
    parts: Mapping[str, float]

    def part(self, name: str) -> float:
        """Nothing, of what its agent did not tell of."""
        return self.parts.get(name, 0.0)

    @property
    def own(self) -> float:
        return sum(value for part, value in self.parts.items() if part not in _WAITS)


def paces(run: Run, window: int = 0) -> list[Pace]:
    """Window 0 are each rank's last steps, 1 those before them."""
    return [pace for one in seen_ranks(run).values() if (pace := _pace(one.rank, one.event, window))]


def _pace(rank: int, event: Event, window: int) -> Pace | None:
    names, rows = said_by(event).get("parts"), said_by(event).get("times_ms")
    if not isinstance(names, list) or not isinstance(rows, list):
        return None
    rows = [row for row in rows if isinstance(row, list) and len(row) == len(names) + 1 and all(map(_is_number, row))]
    rows = rows[: len(rows) - window * _STEPS][-_STEPS:]
    if len(rows) < _STEPS:
        return None
    columns = [median(column) for column in zip(*rows, strict=True)]
    return Pace(rank, event, columns[0], dict(zip(map(str, names), columns[1:], strict=True)))


def slow_rank(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A rank whose own part of the step is longer than everybody else's: the others wait for it."""
    all_paces = paces(run)
    slow = _slow(all_paces)
    if not slow or not _stays(run, {one.rank for one in slow}):
        return
    others = [one for one in all_paces if one not in slow]
    part, excess = max(
        (
            (part, median([one.part(part) for one in slow]) - median([one.part(part) for one in others]))
            for part in _WORDS
        ),
        key=lambda item: item[1],
    )
    fields = {
        "own": f"{median([one.own for one in slow]):.0f}",
        "others": f"{median([one.own for one in others]):.0f}",
        "why": f"{_WORDS[part]}, {excess:.0f} ms more",
        "step": f"{median([one.total for one in all_paces]):.0f}",
        "accused": ", ".join(str(one.rank) for one in slow),
    }
    events = [one.event for one in (*slow[:3], *others[:1])]
    found_one = replace(on_events(rule, events, sorted(one.rank for one in slow), fields), weights=_REASONS[part])
    ranks = {one.rank for one in slow}
    half_lost = _waited_for(all_paces, ranks) or _far_behind(run, ranks)
    yield replace(found_one, severity="error") if half_lost else found_one


def _far_behind(run: Run, ranks: set[int]) -> bool:
    """In each of all windows they need twice as long for themselves as anybody else, and a large part of the step."""
    for window in range(_WINDOWS):
        there = paces(run, window)
        slow = [one.own for one in there if one.rank in ranks]
        rest = [one.own for one in there if one.rank not in ranks]
        if not slow or not rest or min(slow) < 2 * max(rest):
            return False
        if min(slow) - max(rest) < _FAR * median([one.total for one in there]):
            return False
    return True


def waited_at_times(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Again and again all ranks but one stand in a collective until that one has done something by itself."""
    told = {rank: rows for rank, one in seen_ranks(run).items() if (rows := _rows(one.event))}
    if len(told) < 2 or len({len(rows) for rows in told.values()}) > 1 or any(one.rule == "PERF014" for one in found):
        return
    total = {rank: sum(row["total"] for row in rows) for rank, rows in told.items()}
    if min(total.values()) < _WATCHED_MS or max(total.values()) > 1.1 * min(total.values()) or is_suspected(run):
        return
    share = {rank: sum(row["collective"] for row in rows) / total[rank] for rank, rows in told.items()}
    one = min(share, key=lambda rank: share[rank])
    own = sum(row[part] for row in told[one] for part in _OWN) / total[one]
    others = [rank for rank in told if rank != one]
    waited = sum(
        all(told[rank][n]["collective"] > 0.5 * told[rank][n]["total"] for rank in others)
        for n in range(len(told[one]))
    )
    least = min(share[rank] for rank in others)
    if share[one] > _HARDLY or own < _FAR or least < _NEARLY_HALF or waited < _AGAIN:
        return
    part = max(_OWN, key=lambda part: sum(row[part] for row in told[one]))
    fields = {"accused": str(one), "share": f"{least:.0%}", "count": str(waited), "of": str(len(told[one]))}
    events = [seen_ranks(run)[rank].event for rank in (one, *others[:2])]
    yield on_events(rule, events, [one], {**fields, "why": _WORDS[part]})


@dataclass(frozen=True, slots=True)
class Work:
    """What a rank's process computed since its first step, and how long that took: milliseconds."""

    rank: int
    event: Event
    total: float
    of: float
    steps: tuple[float, ...]
    """Of the last ones."""
    swing: float
    """Between the least and the most of the thirds of its last steps: a core may be shared with others for a while."""

    @property
    def lately(self) -> float:
        return sum(self.steps)

    @classmethod
    def of_rank(cls, rank: int, event: Event) -> Work | None:
        """Only without a GPU: who waits for one may keep the processor busy."""
        said, values = said_by(event).get("worked_ms"), said_by(event).get("values")
        if not isinstance(said, dict) or (isinstance(values, dict) and values.get("device")):
            return None
        steps = said.get("steps")
        times = [said.get("total"), said.get("of"), *(steps if isinstance(steps, list) else ())]
        if len(times) < 2 + _WORKED or not all(map(_is_number, times)):
            return None
        total, of, *lately = (float(time) for time in times if time is not None)
        third = len(lately) // 3
        medians = [median(lately[at : at + third]) for at in range(0, 3 * third, third)]
        return cls(rank, event, total, of, tuple(lately), max(medians) / max(min(medians), _AT_LEAST_MS / 10))


def work_of(run: Run) -> list[Work]:
    """Of all ranks, where each is known and they made as many steps, for long enough; else nothing."""
    ranks = seen_ranks(run)
    work = [one for rank, seen in ranks.items() if (one := Work.of_rank(rank, seen.event))]
    steps = {said_by(one.event).get("steps") for one in work}
    known = len(work) == len(ranks) and len(steps) == 1 and min(one.of for one in work) >= _WORKED_MS
    return work if known else []


def computes_more(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Some ranks' processes computed far more than the others' in the same steps, over the run and lately."""
    work = work_of(run)
    told = any(one.symptom in (rule.symptom, _HELD_BY_ONE) and one.severity == "error" for one in found)
    more = _more(work) if len(work) > 1 and not told and not is_suspected(run) else []
    if not more:
        return
    rest = [one for one in work if one not in more]
    fields = {
        "accused": listed([one.rank for one in more]),
        "own": f"{median([one.total for one in more]) / 1e3:.1f}",
        "others": f"{median([one.total for one in rest]) / 1e3:.1f}",
        "steps": str(said_by(work[0].event).get("steps")),
    }
    yield on_events(rule, [one.event for one in (*more[:3], *rest[:1])], sorted(one.rank for one in more), fields)


def _more(work: Sequence[Work]) -> list[Work]:
    """Above the largest gap between neighbours; not more than half, and the same ones lately."""
    ordered = sorted(work, key=lambda one: one.total)
    gaps = [
        (ordered[at].total - ordered[at - 1].total, at) for at in range(len(ordered) - len(ordered) // 2, len(ordered))
    ]
    gap, at = max(gaps)
    rest, more = ordered[:at], ordered[at:]
    steady = max(one.swing for one in work) <= _STEADY
    factor = _MUCH_MORE if steady else _FAR_MORE
    far = more[0].total >= factor * rest[-1].total and gap >= _FIFTH * median([one.of for one in work])
    lately = min(one.lately for one in more) > max(one.lately for one in rest)
    return more if far and lately else []


def busiest_in_turns(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """In most steps one rank has far more to compute than the others, now this one, now that: all wait for all."""
    work = work_of(run)
    if len(work) < 2 or is_suspected(run) or any(one.symptom == rule.symptom for one in found):
        return
    if any(mean(one.steps) < _SHORT_MS or pstdev(one.steps) < _VARIES * mean(one.steps) for one in work):
        return  # a crowded core makes short steps vary, too
    steps = list(zip(*(one.steps for one in work), strict=False))
    means = [max(mean(step), _AT_LEAST_MS / 10) for step in steps]
    lost = sum(map(max, steps)) / sum(means)
    usual = median([max(step) / usual for step, usual in zip(steps, means, strict=True)])
    often = max(Counter(step.index(max(step)) for step in steps).values()) / len(steps)
    if lost >= _LOST_IN_TURNS and usual >= _IN_MOST and often < _MOSTLY_ONE:
        fields = {"share": f"{1 - 1 / lost:.0%}", "steps": str(len(steps))}
        yield on_events(rule, [one.event for one in work[:3]], (), fields)


def _rows(event: Event) -> list[dict[str, float]]:
    """The times of its last steps, by what they were spent on."""
    names, rows = said_by(event).get("parts"), said_by(event).get("times_ms")
    if not isinstance(names, list) or not isinstance(rows, list) or not {*_OWN, "collective"} <= set(map(str, names)):
        return []
    rows = [row for row in rows if isinstance(row, list) and len(row) == len(names) + 1 and all(map(_is_number, row))]
    found = [dict(zip(("total", *map(str, names)), row, strict=True)) for row in rows]
    return found if len(found) >= 2 * _STEPS else []


def _stays(run: Run, ranks: set[int]) -> bool:
    """In every window they need longest for themselves, and in most of them by far; two windows will do where the
    others do nothing but wait."""
    windows = [there for window in range(_WINDOWS) if len(there := paces(run, window)) == len(paces(run))]
    far = sum({one.rank for one in _slow(there)} == ranks for there in windows)
    if len(windows) < _WINDOWS and (far < len(windows) or far < 2 or not _waited_for(windows[0], ranks)):
        return False
    return 2 * far > len(windows) and all(
        {one.rank for one in sorted(there, key=lambda one: -one.own)[: len(ranks)]} == ranks for there in windows
    )


def _waited_for(all_paces: Sequence[Pace], ranks: set[int]) -> bool:
    own = min(one.own for one in all_paces if one.rank in ranks)
    rest = [one for one in all_paces if one.rank not in ranks]
    return all(one.own < _FIFTH * own and sum(one.parts.get(p, 0.0) for p in _WAITS) > 0.5 * one.total for one in rest)


def _slow(all_paces: Sequence[Pace]) -> list[Pace]:
    """The largest gap between neighbours, if what is above it are few and far enough from the rest."""
    if len(all_paces) < 2:
        return []
    ordered = sorted(all_paces, key=lambda one: one.own)
    half = len(ordered) // 2
    step = median([one.total for one in ordered])
    for count in range(1, max(1, len(ordered) // 4) + 1):
        rest, top = ordered[:-count], ordered[-count:]
        gap = top[0].own - rest[-1].own
        spread = rest[-1].own - rest[0].own if len(rest) > 1 else 0.0
        waits = median([sum(one.parts.get(part, 0.0) for part in _WAITS) for one in rest])
        if gap <= max(spread, _AT_LEAST_MS) or waits < 0.5 * gap or len(rest) < max(half, 1):
            continue
        # Who computes slowly is slow in the backward pass, too, where its time cannot be told from waiting.
        everywhere = waits > _WAITED * step and top[0].own > _TIMES * rest[-1].own
        if gap * (_WITH_BACKWARD if everywhere else 1.0) > _EXCESS * step:
            return top
    return []


def slow_link(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A rank whose connections move far fewer bytes in the time they are busy than everybody else's."""
    ranks = seen_ranks(run)
    all_paces = paces(run)
    if len(all_paces) < 3 or is_suspected(run) or any(one.rule in ("PERF014",) for one in found):
        return
    step = median([one.total for one in all_paces])
    waits = median([sum(one.parts.get(part, 0.0) for part in _WAITS) for one in all_paces])
    edges = {rank: _edges(one.event) for rank, one in ranks.items()}
    at = {(port, peer): rank for rank, found_here in edges.items() for port, peer, *_ in found_here}
    rates: list[tuple[int, float]] = []
    for rank, here in edges.items():
        for port, peer, sent, busy, by_peer in here:
            blamed = at.get((peer, port), rank) if by_peer > busy / 2 else rank
            rates.append((blamed, sent / busy))
    by_rank = {rank: [rate for blamed, rate in rates if blamed == rank] for rank in ranks}
    typical = {rank: max(own) for rank, own in by_rank.items() if own}
    if len(typical) < 3 or waits < _COMMUNICATION * step:
        return
    worst = min(typical, key=lambda rank: typical[rank])
    usual = median([rate for rank, rate in typical.items() if rank != worst])
    if typical[worst] * _SLOWER > usual or min(r for k, r in typical.items() if k != worst) < typical[worst] * 2:
        return
    fields = {"rate": f"{typical[worst]:.1f}", "usual": f"{usual:.1f}", "step": f"{step:.0f}", "accused": str(worst)}
    others = [one.event for rank, one in ranks.items() if rank != worst][:1]
    yield on_events(rule, [ranks[worst].event, *others], [worst], fields)


def _edges(event: Event) -> list[tuple[int, int, int, int, int]]:
    """Own port, peer's port, bytes sent lately, microseconds busy, and of those waiting for the peer."""
    found = said_by(event).get("connections")
    edges = []
    for one in found if isinstance(found, list) else ():
        values: list[Any] = [one.get(name) for name in _EDGE] if isinstance(one, dict) else []
        port, peer, sent, busy, by_peer = values if all(isinstance(v, int) for v in values) and values else [0] * 5
        if sent > _SENT and busy > _BUSY_US:
            edges.append((port, peer, sent, busy, by_peer))
    return edges


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def waits_for_data(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """All ranks spend most of their steps waiting for the next batch."""
    yield from _mostly(run, rule, found, "data", _MOST_OF_IT, everybody=True)


def workers_begin_again(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Passes through the loader are short, and at the begin of each all wait until its workers are there again."""
    ranks = conducts(run)
    for one in ranks.values():
        loader = next((loader for loader in items(one.raw.get("loaders")) if natural(loader.get("workers"))), {})
        begun = natural(loader.get("begun"))
        if loader.get("persistent") is not False or begun < _PASSES or one.steps > _SHORT * begun:
            return
        rows = _rows(one.event)
        if not rows or sum(row["data"] for row in rows) < _LARGE_PART * sum(row["total"] for row in rows):
            return
    if ranks:
        one = ranks[min(ranks)]
        loader = next(loader for loader in items(one.raw.get("loaders")) if natural(loader.get("workers")))
        rows = _rows(one.event)
        share = sum(row["data"] for row in rows) / sum(row["total"] for row in rows)
        fields = {"begun": str(natural(loader["begun"])), "steps": str(one.steps), "share": f"{share:.0%}"}
        fields |= {"workers": str(natural(loader["workers"])), "place": str(loader.get("place") or "")}
        yield finding(rule, ranks, [], fields)


def saves_in_every_step(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """In more than half of the steps a rank saves, and that takes a large part of them."""
    yield from _mostly(run, rule, found, "checkpoint", _LARGE_PART, everybody=False)


def _mostly(
    run: Run, rule: Rule, found: Sequence[Finding], part: str, share: float, *, everybody: bool
) -> Iterator[Finding]:
    """In each of the last windows; medians, so that the first batch of an epoch does not count."""
    windows = [pace for window in range(_WINDOWS) if (pace := paces(run, window))]
    if len(windows) < 2 or is_suspected(run) or any(one.symptom == rule.symptom for one in found):
        return
    over = [
        [one for one in window if one.total > 0 and one.part(part) >= max(share * one.total, _AT_LEAST_MS)]
        for window in windows
    ]
    if not all(len(these) >= (len(window) if everybody else 1) for these, window in zip(over, windows, strict=True)):
        return
    one = max(over[0], key=lambda one: one.parts[part])
    fields = {
        "ms": f"{one.parts[part]:.1f}",
        "total": f"{one.total:.1f}",
        "share": f"{one.parts[part] / one.total:.0%}",
    }
    yield on_events(rule, [each.event for each in over[0][:3]], (), fields)

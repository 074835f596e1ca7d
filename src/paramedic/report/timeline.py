"""All ranks side by side: who failed first, who followed, who fell silent. The template draws it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paramedic.model import Event, Report
from paramedic.report.axis import Tick, known_time, make_axis
from paramedic.report.escape import crop, one_line
from paramedic.report.words import count, name, place, undivided, when

KINDS = {
    "first": "first failure",
    "error": "error",
    "followed": "followed from it",
    "exit": "process ended",
    "last": "last sign of life",
    "tick": "other event",
}
"""What a mark can mean, the most telling first; where marks would overlap, the most telling is drawn."""
_ORDER = {kind: i for i, kind in enumerate(KINDS)}
WIDTH = 960
LEFT, RIGHT = 150, 914
TOP, ROW = 22, 22
BIN = 7
MOST_LANES = 20
MOST_MARKS = 500
MOST_ROWS = 120


@dataclass(frozen=True, slots=True)
class Mark:
    x: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank, the launcher, or a group of ranks that do not have a lane of their own."""

    label: str
    detail: str
    y: float
    is_first: bool
    is_group: bool
    span: tuple[float, float] | None
    ticks: str
    marks: tuple[Mark, ...]
    note: str


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the text alternative."""

    rank: str
    what: str
    time: str
    place: str
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]
    caption: str
    height: int
    first_x: float | None
    bend: float | None
    kinds: tuple[str, ...]
    rows: tuple[Row, ...]
    rows_left: int
    summary: str


@dataclass(frozen=True, slots=True)
class _Group:
    """Which events share a lane."""

    label: str
    detail: str
    ranks: frozenset[int | None]
    is_group: bool = False
    silence: str = "no output"
    """What to say where the lane is empty."""


def timeline(report: Report) -> Timeline | None:
    """None when there is nothing to draw."""
    events = _all_events(report)
    ranks = _all_ranks(report)
    if not events or not (ranks or any(event.rank is None for event in events)):
        return None
    kinds = _classify(report, events)
    first = _first_event(events, kinds)
    marked = [event for event, kind in zip(events, kinds, strict=True) if kind != "tick"]
    axis = make_axis(events, marked, first, LEFT + 8, RIGHT)
    placed = [
        (event, kind, x) for event, kind in zip(events, kinds, strict=True) if (x := axis.place(event)) is not None
    ]
    groups = _groups(report, ranks, events, kinds)
    lanes = _lanes(groups, placed, report)
    if not axis.common:  # a file's first line is where its lane begins, though no event stands there
        lanes = tuple(replace(lane, span=(float(LEFT + 8), lane.span[1])) if lane.span else lane for lane in lanes)
    telling = [item for item in placed if item[1] not in ("tick", "last")]
    telling.sort(key=lambda item: (item[2] if axis.common else 0, _ORDER[item[1]], item[2], item[0].seq))
    present = {mark.kind for lane in lanes for mark in lane.marks} | {kind for _, kind, _ in placed if kind == "tick"}
    return Timeline(
        lanes=lanes,
        ticks=axis.ticks,
        caption=axis.caption + _left_out(len(events) - len(placed)),
        height=TOP + ROW * len(lanes) + 30,
        first_x=next((round(x, 1) for event, _, x in placed if event is first), None) if axis.common else None,
        bend=axis.bend,
        kinds=tuple(kind for kind in KINDS if kind in present),
        rows=tuple(_row(event, kind) for event, kind, _ in telling[:MOST_ROWS]),
        rows_left=max(0, len(telling) - MOST_ROWS),
        summary=f"{count(len(events), 'event')} on {count(len(ranks), 'rank')}, {axis.order}",
    )


def _all_events(report: Report) -> list[Event]:
    """The run's events, and what the verdict quotes should the run not hold it. A line of a program has no time."""
    timeless = {source.id for source in report.run.sources if source.kind in ("code", "command")}
    quoted = [evidence.event for evidence in report.verdict.evidence] if report.verdict else []
    quoted = [event for event in quoted if event.source not in timeless and event.kind != "setting"]
    said = (event for event in report.run.events if event.kind != "metric")
    found = {_key(event): event for event in (*said, *quoted)}
    return sorted(found.values(), key=_key)


def _all_ranks(report: Report) -> list[int]:
    run = report.run
    named = report.verdict.ranks if report.verdict else ()
    return sorted({*run.ranks_seen, *named, *range(min(run.world_size or 0, 1_000_000))})


_Key = tuple[str, int, str, int]
_Placed = tuple[Event, str, float]
"""An event, what it means, and where it stands."""


def _key(event: Event) -> _Key:
    """One line may tell of the ends of many ranks."""
    rank = event.rank if event.kind == "exit" and event.rank is not None else -1
    return event.source, event.seq, event.kind, rank


def _classify(report: Report, events: Sequence[Event]) -> list[str]:
    first, quoted = _first_quotes(report, events), _quotes(report)
    folded = {_key(event) for cascade in report.cascades for event in cascade.events}
    if report.verdict and report.verdict.ranks:  # a missing rank is shown by those that waited for it
        others = (e.event for e in report.verdict.evidence if e.event.rank not in (None, *report.verdict.ranks))
        folded |= {_key(event) for event in others}
    return [_kind(event, first, quoted, folded) for event in events]


def _kind(event: Event, first: set[_Key], quoted: set[_Key], folded: set[_Key]) -> str:
    key = _key(event)
    if key in first:
        return "first"
    if event.kind in ("exit", "last"):
        return event.kind
    if key in folded:
        return "followed"
    return "error" if key in quoted or event.kind == "traceback" else "tick"


def _first_quotes(report: Report, events: Sequence[Event]) -> set[_Key]:
    """For each rank that failed first the event that shows it, or else its last sign of life."""
    if report.verdict is None:
        return set()
    quoted = [evidence.event for evidence in report.verdict.evidence]
    named = set(report.verdict.ranks)
    if not named or all(event.rank is None for event in quoted):  # a kernel or a platform tells of a rank
        return {_key(event) for event in quoted[:1]}
    alive = sorted(
        (e for e in events if e.rank in named and e.kind != "exit"), key=lambda e: (known_time(e) or 0, e.seq)
    )
    chosen = {event.rank: event for event in (*alive, *(e for e in reversed(quoted) if e.rank in named))}
    return {_key(event) for event in chosen.values()}


def _quotes(report: Report) -> set[_Key]:
    found = (report.verdict, *report.findings)
    return {_key(e.event) for f in found if f and f.severity == "error" for e in f.evidence}


def _first_event(events: Sequence[Event], kinds: Sequence[str]) -> Event | None:
    marked = [event for event, kind in zip(events, kinds, strict=True) if kind == "first"]
    return min(marked, key=lambda event: known_time(event) or 0, default=None)


def _groups(report: Report, ranks: Sequence[int], events: Sequence[Event], kinds: Sequence[str]) -> list[_Group]:
    """Ranks worth a lane of their own, by number; the others share lanes: with errors, quiet, silent."""
    hosts = {s.rank: s.host for s in report.run.sources if s.host} | {e.rank: e.host for e in events if e.host}
    heard = {event.rank for event in events}
    loud = _loudness(report, events, kinds)
    named = set(report.verdict.ranks) if report.verdict else set()
    silent = [rank for rank in ranks if rank not in heard and rank not in named]
    if len(silent) <= 3:
        silent = []
    own = sorted(set(ranks) - set(silent), key=lambda rank: (-loud[rank], rank))
    shown = own if len(own) <= MOST_LANES else own[: MOST_LANES - 4]
    rest = set(own) - set(shown)
    written = {source.rank for source in report.run.sources if source.lines}
    without = "no line that names it" if undivided(report.run) else "no output"
    groups = [_Group("job", "no rank", frozenset({None}))] if None in heard else []
    groups += [
        _Group(
            f"rank {r}", one_line(hosts.get(r) or ""), frozenset({r}), False, "no event" if r in written else without
        )
        for r in sorted(shown)
    ]
    shared = (
        ("more with errors", {rank for rank in rest if loud[rank]}),
        ("quiet ranks", {rank for rank in rest if not loud[rank]}),
        ("ranks without events", set(silent)),
    )
    groups += [
        _Group(f"+ {len(some):,} {what}", "", frozenset(some), True, "no event" if some & written else without)
        for what, some in shared
        if some
    ]
    return groups


def _loudness(report: Report, events: Sequence[Event], kinds: Sequence[str]) -> Counter[int | None]:
    """How much a rank deserves its own lane: named first, then by what it shows."""
    loud = Counter[int | None]()
    for event, kind in zip(events, kinds, strict=True):
        loud[event.rank] += {"first": 10**6, "error": 100, "followed": 10, "exit": 1}.get(kind, 0)
    for rank in report.verdict.ranks if report.verdict else ():
        loud[rank] += 10**9
    return loud


def _left_out(number: int) -> str:
    return f"; not drawn: {count(number, 'event')} that cannot be placed" if number else ""


def _lanes(groups: Sequence[_Group], placed: Sequence[_Placed], report: Report) -> tuple[Lane, ...]:
    owner = {rank: i for i, group in enumerate(groups) for rank in group.ranks}
    held: list[list[_Placed]] = [[] for _ in groups]
    for item in placed:
        if item[0].rank in owner:
            held[owner[item[0].rank]].append(item)
    named = set(report.verdict.ranks) if report.verdict else set()
    most = max(3, MOST_MARKS // len(groups))
    return tuple(
        _lane(group, held[i], y=TOP + ROW * i + ROW / 2, named=bool(named & group.ranks), most=most)
        for i, group in enumerate(groups)
    )


def _lane(group: _Group, held: Sequence[_Placed], *, y: float, named: bool, most: int) -> Lane:
    bins: dict[int, list[_Placed]] = {}
    for item in held:
        bins.setdefault(round(item[2] / BIN), []).append(item)
    best = [min(found, key=lambda item: _ORDER[item[1]]) for found in bins.values()]
    marks = [
        Mark(round(x, 1), kind, _title(event, kind, len(bins[round(x / BIN)])))
        for event, kind, x in sorted(best, key=lambda item: (_ORDER[item[1]], item[2]))
        if kind != "tick"
    ][:most]
    xs = [x for found in bins.values() for _, _, x in found]
    ticks = "".join(f"M{x:.0f} {y - 3:.0f}v6" for _, kind, x in best if kind == "tick")
    note = "" if held else f"{group.silence}: named as the first failure" if named else group.silence
    span = (round(min(xs), 1), round(max(xs), 1)) if xs else None
    ordered = tuple(sorted(marks, key=lambda mark: -_ORDER[mark.kind]))  # the most telling is drawn last, on top
    return Lane(group.label, group.detail, y, named, group.is_group, span, ticks, ordered, note)


def _title(event: Event, kind: str, together: int) -> str:
    more = f" (and {together - 1:,} more here)" if together > 1 else ""
    return f"{KINDS[kind]}{more}: {_says(event)}"


def _says(event: Event) -> str:
    rank = "no rank" if event.rank is None else f"rank {event.rank}"
    time = when(event)
    return f"{rank}, {one_line(time) + ', ' if time else ''}{crop(place(event), 80)}: {crop(_text(event), 140)}"


def _text(event: Event) -> str:
    """Its last line that says something; a bare exit in words."""
    lines = [line for line in event.text[-4000:].split("\n") if line.strip()]
    if lines:
        return one_line(lines[-1])
    told = ", ".join(f"{name(str(k))} {one_line(str(v))}" for k, v in event.fields.items() if k != "frames")
    return crop(told or name(event.kind), 200)


def _row(event: Event, kind: str) -> Row:
    time = when(event)
    return Row(
        rank="none" if event.rank is None else str(event.rank),
        what=KINDS[kind],
        time=one_line(time) if time else "",
        place=crop(place(event), 100),
        text=crop(_text(event), 200),
    )

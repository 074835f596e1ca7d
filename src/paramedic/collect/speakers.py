"""Who speaks in a log, once all of it was read: its events, each with its rank, its host and its attempt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from paramedic.collect.drafts import Draft
from paramedic.collect.elastic import Restarts
from paramedic.collect.layouts import Prefixes, Who
from paramedic.model import Event, Source, event_of
from paramedic.redact import redact

_WELL_BEFORE = 5_000_000_000


def events_of(
    made: Sequence[Draft], source: Source, prefixes: Prefixes, restarts: Restarts, of_file: int | None
) -> list[Event]:
    """Only the whole file tells whose lines the prefixes and the path mean."""
    whose: dict[Who, tuple[int | None, str | None]] = {}
    for who in {one.who for one in made}:
        rank = prefixes.whose(who, of_file)
        host = prefixes.host_of(who, rank) or source.host
        whose[who] = rank, redact(host) if host else None
    events = [
        _event_of(one, source, restarts, *whose[one.who])
        for one in made
        if one.kind != "traceback" or not prefixes.is_helper(one.who)
    ]
    return _with_rank_of_end(_with_local_ranks(events, prefixes)) if source.rank is None else events


def _event_of(one: Draft, source: Source, restarts: Restarts, rank: int | None, host: str | None) -> Event:
    kind, text, seq, line, (by, _, stream), stamp, fields = one
    attempt = source.attempt + restarts.attempt(seq, stream if by == "process" else "")
    time = (stamp.utc_ns, stamp.uncertainty_ns, stamp.text) if stamp else (None, 0, "")
    return event_of((source.id, seq, kind, text, line, rank, host, attempt, *time, fields))


def _with_local_ranks(events: list[Event], prefixes: Prefixes) -> list[Event]:
    """An agent's line names the local rank only; on a single node it is the job's, too."""
    exits = [event for event in events if event.kind == "exit"]
    nameless = any(event.rank is None for event in exits)
    if not nameless or any(event.rank not in (None, event.fields.get("local_rank")) for event in exits):
        return events
    if not prefixes.on_one_node:
        return events
    return [replace(e, rank=e.fields.get("local_rank")) if e.kind == "exit" and e.rank is None else e for e in events]


def _with_rank_of_end(events: list[Event]) -> list[Event]:
    """One traceback that names nobody, and one rank of several that ended with an error code unheard: it is his."""
    attempts: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind in ("traceback", "exit") or "closing signal" in event.text:
            attempts[event.attempt].append(event)
    for own in attempts.values():
        raised = [event for event in own if event.kind == "traceback" and not _of_launcher(event)]
        nameless = [event for event in raised if event.rank is None]
        exits = {event.rank: event for event in own if event.kind == "exit" and event.rank is not None}
        ended = _earliest([event for event in exits.values() if 0 < event.fields["exitcode"] < 128])
        others = len(exits) > 1 or any(event.kind == "line" for event in own)
        if others and len(nameless) == len(ended) == 1 and all(e.rank != ended[0].rank for e in raised):
            host = ended[0].host or ended[0].fields["host"] or None
            at = next(at for at, event in enumerate(events) if event is nameless[0])
            events[at] = replace(nameless[0], rank=ended[0].rank, host=host)
    return events


def _earliest(ends: list[Event]) -> list[Event]:
    """The one that ended well before all others, where launchers tell the time."""
    times = sorted(event.utc_ns for event in ends if event.utc_ns is not None)
    if len(ends) < 2 or len(times) < len(ends) or times[1] - times[0] < _WELL_BEFORE:
        return ends
    return [event for event in ends if event.utc_ns == times[0]]


def _of_launcher(event: Event) -> bool:
    return any(name.endswith(("ChildFailedError", "SignalException")) for name in event.fields.get("types", ()))

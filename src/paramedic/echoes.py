"""What only followed, whatever its rule says of itself: a time limit behind a hang, a job called off while it moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paramedic.collect.tracebacks import ends_all
from paramedic.detect.interrupted import TIME_LIMIT
from paramedic.detect.stacks import ENDED
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

DAY_NS = 24 * 3600 * 1_000_000_000
_CALLED_OFF = regex(r"\bCANCELLED (?:AT \S{1,40} (?:DUE to SIGNAL Terminated )?\*\*\*|by \d)")


def called_off(run: Run, found: list[Finding]) -> list[Finding]:
    """That somebody cancelled a job says nothing of a failure, where nothing else does, unless it had stood still. Nor
    does an agent that misses the others when its ranks have trained, and none of them misses anybody; nor that all
    were asked to end."""
    errors = [one for one in found if one.severity == "error"]
    rules = {one.rule for one in errors}
    if rules == {_ASKED} or (run.stepping and rules == {_STORE_GONE} and len(errors) <= _ONCE_OR_TWICE):
        return [replace(one, severity="warning") if one.rule in rules else one for one in found]
    if any(one.consequence != "always" and one.rule not in (_CANCELLED, _TOLD_TO_STOP) for one in errors):
        return found
    called = [
        one
        for one in found
        if one.rule == _CANCELLED and _CALLED_OFF.search(one.evidence[0].event.text) and not _had_stood_still(run, one)
    ]
    told = [one for one in errors if one.rule == _TOLD_TO_STOP]
    if not all(any(_at_once(one, end) for end in called) for one in told):
        return found
    remarks = {id(one) for one in (*called, *told)}
    return [replace(one, severity="warning") if id(one) in remarks else one for one in found]


def _at_once(one: Finding, other: Finding) -> bool:
    """By clocks, else by their place in one log."""
    told, end = one.evidence[0].event, other.evidence[0].event
    if told.utc_ns is not None and end.utc_ns is not None:
        return _in_one_zone(abs(end.utc_ns - told.utc_ns), told, end) <= _MINUTE_NS
    return told.source == end.source and abs(end.seq - told.seq) <= _LINES_OF_AN_END


def _had_stood_still(run: Run, one: Finding) -> bool:
    """For long before, as far as clocks tell."""
    ended = one.evidence[0].event
    moved = [event for event in run.stepping if not event.fields.get("finished")]
    own = [event for event in run.of_kind("progress", "bars") if event.source == ended.source]
    if not own and not moved:
        return _silent_ns(run, ended) >= _HALF_AN_HOUR_NS
    last = max(own, key=lambda e: e.seq, default=None)
    if last is None or last.utc_ns is None:  # by what others tell, if they tell the time
        elsewhere = [e for e in moved if e.source != ended.source and e.utc_ns is not None]
        last = max(elsewhere, key=lambda e: e.utc_ns or 0, default=None)
    if last is None or last.utc_ns is None or ended.utc_ns is None:
        return False
    return _in_one_zone(ended.utc_ns - last.utc_ns, last, ended) >= _HALF_AN_HOUR_NS


def _in_one_zone(gap: int, one: Event, other: Event) -> int:
    """What is left of it between clocks: those of other zones are whole hours apart."""
    return gap if one.uncertainty_ns == other.uncertainty_ns else gap % _HOUR_NS


_HOUR_NS, _HALF_AN_HOUR_NS = 3_600_000_000_000, 1_800_000_000_000
_MINUTE_NS, _LINES_OF_AN_END = 60_000_000_000, 100
_ONCE_OR_TWICE = 2
_CANCELLED, _STORE_GONE, _ASKED, _TOLD_TO_STOP = "JOB014", "JOB070", "JOB071", "JOB008"


def _silent_ns(run: Run, ended: Event) -> int:
    """Where nobody tells of a step: since somebody has written anything, in that log or in another."""
    said = [int(fact.value) for fact in run.facts if (fact.name, fact.source) == ("silent", ended.source)]
    heard = [e.utc_ns for e in run.of_kind("last") if e.source != ended.source and e.utc_ns is not None and e.text]
    gap = (ended.utc_ns or 0) - max(heard) if heard and ended.utc_ns is not None else 0
    return max(gap, *(value * 1_000_000_000 for value in said), 0)


def followed(run: Run, errors: Sequence[Finding]) -> Sequence[Finding]:
    """The same failures, each with what it is a consequence of by all that is known of the others."""
    errors = _not_ended_by_mpi(run, errors)
    return _not_by_time(run, _not_crashed_since(run, _without_a_way(_not_unexpectedly(errors))))


def _not_unexpectedly(errors: Sequence[Finding]) -> Sequence[Finding]:
    """Ray sees an actor gone and knows no reason; where the actor itself said before that it shuts down because of
    an error above, that is an echo."""
    gave_up = [f.evidence[0].event for f in errors if f.rule == _GAVE_UP]
    return [replace(f, consequence="always") if f.rule == _DIED and _told_before(gave_up, f) else f for f in errors]


_GAVE_UP, _DIED = "JOB760", "JOB047"
_NO_WAY = frozenset(["Host is down", "Network is down", "Network is unreachable", "No route to host"])


def _without_a_way(errors: Sequence[Finding]) -> Sequence[Finding]:
    """A peer that has died refuses; that there is no way to its host was so before, and who dies then dies of it."""
    cut_off = {rank for f in errors if f.fields.get("why") in _NO_WAY for rank in f.ranks}
    if not cut_off:
        return errors
    return [
        replace(f, consequence="never")
        if f.fields.get("why") in _NO_WAY
        else replace(f, consequence="always")
        if f.symptom == "native-crash" and f.ranks and cut_off.issuperset(f.ranks)
        else f
        for f in errors
    ]


def _not_ended_by_mpi(run: Run, errors: Sequence[Finding]) -> Sequence[Finding]:
    """MPI says that it ends all processes because of an error that it has just told of: they are killed then."""
    killed = [f for f in errors if f.rule == _KILLED]
    ends: dict[str, Event] = {}
    for event in run.saying(_MPI_ENDS_ALL, "line") if killed else ():
        ends.setdefault(event.source, event)
    first = [*ends.values()]
    late = {id(f) for f in killed if _told_before(first, f)}
    return [replace(f, consequence="always") if id(f) in late else f for f in errors]


_KILLED, _MPI_ENDS_ALL = "JOB002", "MPI_ERRORS_ARE_FATAL"


def _not_crashed_since(run: Run, errors: Sequence[Finding]) -> Sequence[Finding]:
    """A launcher sees a process crash, and does not say whose it was; in the same console a rank had fallen before, by
    its own words, and others had missed it. Who crashes then, does so on its way out."""
    seen = [f for f in errors if f.evidence[0].event.kind == "exit" or f.rule in _BY_LAUNCHER]
    crashed = [f for f in seen if f.symptom == "native-crash" and not f.ranks]
    fell: dict[_Start, int] = {}
    for event in (f.evidence[0].event for f in errors if f.ranks and crashed):
        if event.fields.get("uncaught"):
            fell[_start_of(event)] = min(fell.get(_start_of(event), event.seq), event.seq)
    missed: dict[_Start, int] = {}
    for event in run.saying_one_of(_MISSED, "line") if fell else ():
        start = _start_of(event)
        if event.rank is not None and start in fell and event.seq > fell[start]:
            missed.setdefault(start, event.seq)
    late = {id(f) for f in crashed if (e := f.evidence[0].event).seq > missed.get(_start_of(e), e.seq)}
    return [replace(f, consequence="always") if id(f) in late else f for f in errors]


_Start = tuple[str, int]
_BY_LAUNCHER = frozenset(["JOB044", "JOB052"])
_MISSED = ("recvValue failed on", "sendBytes failed on", "Connection was likely closed", "Connection closed by peer")


def _start_of(event: Event) -> _Start:
    return event.source, event.attempt


def _not_by_time(run: Run, errors: Sequence[Finding]) -> Sequence[Finding]:
    """Who waits in vain waits until the scheduler's time is over: that is the echo, where the wait was told before it,
    and nobody made a step in between. And so it is where one rank made all others slow, or all was begun anew."""
    errors = _not_since_the_numbers(errors)
    if any(f.rule == _STUCK_SAVING for f in errors):  # seen before the end that somebody made of it
        errors = [replace(f, consequence="always") if f.rule in ENDED else f for f in errors]
    if not any(map(_ran_out, errors)):
        return errors
    waits = [f.evidence[0].event for f in errors if f.symptom in _IN_VAIN or raised(f)]
    last: dict[str, int] = {}
    for event in run.stepping:
        last[event.source] = max(last.get(event.source, -1), *event.fields.get("at", ()), -1)
    since = [e for e in waits if last.get(e.source, -1) <= e.seq]
    slowed = any(f.symptom == _SLOWED or f.rule == _BEGUN_ANEW for f in errors)
    late = [_ran_out(f) and (slowed or _told_before(since, f)) for f in errors]
    return [replace(f, consequence="always") if is_late else f for f, is_late in zip(errors, late, strict=True)]


def _not_since_the_numbers(errors: Sequence[Finding]) -> Sequence[Finding]:
    """A job whose numbers had gone wrong for good had failed before a scheduler ended it."""
    wrong = [f for f in errors if f.symptom == "numerical-instability"]

    def is_late(f: Finding) -> bool:
        end = f.evidence[0].event
        said = [one.evidence[0].event for one in wrong if one.attempt == f.attempt]
        return any((e.line or 0) < (end.line or 0) if e.source == end.source else _earlier(e, end) for e in said)

    return [replace(f, consequence="always") if f.rule == TIME_LIMIT and is_late(f) else f for f in errors]


_STUCK_SAVING = "CKPT780"
_IN_VAIN = ("collective-hang", "communication-runtime-error", "rendezvous-setup-hang")
_SLOWED, _BEGUN_ANEW = "straggler-or-imbalance", "CKPT790"
_OF_TIME = frozenset(["TIME LIMIT", "TIMEOUT", "wall clock limit", "walltime", "TERM_RUNLIMIT"])


def raised(one: Finding) -> bool:
    """Out of the whole program, and not merely out of a call that somebody guards."""
    event = one.evidence[0].event
    return (
        event.kind == "traceback"
        and one.consequence == "never"
        and (bool(event.fields.get("uncaught")) or ends_all(event.fields.get("frames")))
    )


def _ran_out(one: Finding) -> bool:
    return one.rule == TIME_LIMIT and one.fields.get("reason") in _OF_TIME


def _told_before(waits: Sequence[Event], ended: Finding) -> bool:
    """By their place in one file, else by clocks."""
    end = ended.evidence[0].event
    return any(e.seq < end.seq if e.source == end.source else _earlier(e, end) for e in waits)


def _earlier(one: Event, other: Event) -> bool:
    known = one.utc_ns is not None and other.utc_ns is not None and one.uncertainty_ns == other.uncertainty_ns
    return known and 0 < (other.utc_ns or 0) - (one.utc_ns or 0) < DAY_NS

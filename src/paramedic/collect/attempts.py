"""Logs of one job's attempts, one after the other: the last one is the one to judge."""

from __future__ import annotations

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

from paramedic.collect.logs import LogRead
from paramedic.collect.pods import in_their_attempts
from paramedic.model import Event, Fact
from paramedic.regex import regex

_WHOLE_OUTPUT = regex(r"(?:^|/)slurm-\d{2,12}(?:\.batch)?\.(?:out|err|log)$")
_NUMBER = regex(r"\d{1,20}")
_ATTEMPT = regex(r"(?<![A-Za-z])(?:attempt|try|retry|restart|relaunch|resubmit)[-_.]?\d{1,5}", re.I)
_TIME = regex(r"(?<!\d)(?:(?:19|20)\d\d[-_.]?[01]\d[-_.]?[0-3]\d|1\d{9})(?!\d{2})")
"""A day, or the seconds since 1970 as platforms number their streams."""
_OF_A_PLACE = regex(
    r"(?:rank|node|host|worker|task|proc|process|gpu|pod|log|device|master|chief|actor|stage|group|shard|trial|fold"
    r"|seed|slice|launcher|server|rdzv|local|global|dmesg|kern|stdout|stderr|ip|cn|nid)[-_.]?\d",
    re.I,
)
"""Numbers that say where something ran, or which of several that ran side by side."""
_APART_NS = 60_000_000_000
_KERNEL = (" kernel: ", "NVRM: ")
_OF_THE_JOB = ("progress", "exit", "traceback", "stack")


_SAID = regex(
    r"(?:^|[/._-])(?:attempt|(?:re[-_]?)?(?:try|start)|re[-_]?(?:launch|submit|queue)|cycle)[-_.=]?(\d{1,5})(?=$|[/._-])",
    re.I,
)
"""What launchers, platforms and people call the next start: `attempt_1/`, `node3.restart-2.log`, `app_cycle1.log`."""
_PREVIOUS = regex(r"[._-]prev(?:ious)?(?=\.(?:log|txt|out)\b|$)|(?<=/)(?:--)?prev(?:ious)?[-_/]", re.I)
"""What `kubectl logs --previous` gives: of the container before its last start."""
_LETTERS = regex(r"-(?=[a-z]{0,4}\d|[b-df-hj-np-tv-xz]{5})(?=\d{0,4}[a-z])[a-z0-9]{5}(?=\.(?:log|txt|out)\b|$)")
"""As Kubernetes draws them, without vowels, or with a digit."""
_BESIDE_S = 60
"""So much later others of the same attempt begin."""
_CURRENT = regex(r"(?<=/)(?:current|latest|now)/", re.I)
"""And where those of its last start are put beside them."""


def in_order(reads: Sequence[LogRead]) -> Sequence[LogRead]:
    """With their events counted by attempts, where all that is there are logs of attempts, or where their names say
    so."""
    attempts = _jobs(reads) or _siblings(reads)
    if len(attempts) > 1:
        return _in_turn(reads, attempts)
    return _named(reads) or _restarted(reads) or _replaced(reads) or _appended(reads)


def beside_attempts(events: Sequence[Event]) -> Sequence[Event]:
    """A kernel's log knows of no attempts: what it says belongs to the one that ran then, by clocks of one kind."""
    if not any(event.attempt for event in events):
        return events
    of_the_job = {event.source for event in events if event.attempt or event.kind in _OF_THE_JOB}
    logs = {e.source for e in events if e.source not in of_the_job and any(word in e.text for word in _KERNEL)}
    heard = {zoned: _heard(events, of_the_job, zoned) for zoned in ((True, False) if logs else ())}
    return [
        replace(event, attempt=_nearest(event.utc_ns, spans))
        if event.source in logs and event.utc_ns is not None and (spans := heard[event.zoned])
        else event
        for event in events
    ]


def _heard(events: Sequence[Event], sources: Collection[str], zoned: bool) -> list[tuple[int, int, int]]:
    """Each attempt's number, and when it was heard of first and last by clocks of this kind; nothing where they do not
    follow each other, or one of them is not heard of."""
    times: dict[int, list[int]] = defaultdict(list)
    for event in events:
        if event.utc_ns is not None and event.source in sources and event.kind != "metric" and event.zoned == zoned:
            times[event.attempt].append(event.utc_ns)
    heard = [(number, min(said), max(said)) for number, said in sorted(times.items())]
    all_heard = times.keys() >= {event.attempt for event in events if event.source in sources}
    return heard if all_heard and all(one[2] < two[1] for one, two in pairwise(heard)) else []


def _nearest(time: int, heard: Sequence[tuple[int, int, int]]) -> int:
    return min(heard, key=lambda one: max(one[1] - time, time - one[2], 0))[0]


def _later(read: LogRead, by: int) -> LogRead:
    if not by:
        return read
    events = [replace(event, attempt=event.attempt + by) for event in read.events]
    source = replace(read.source, attempt=read.source.attempt + by)
    return replace(read, source=source, events=[*in_their_attempts(events, read.facts)])


def _named(reads: Sequence[LogRead]) -> list[LogRead]:
    """Each log counted as its name says, where the clocks agree, or what has a log of an earlier attempt has one of the
    last. What tells of no attempts is of the last: it was written down when all was over."""
    numbers = {id(read): int(found[-1]) for read in reads if (found := _SAID.findall(read.source.id))}
    known = sorted(set(numbers.values()))
    attempts = [[read for read in reads if numbers.get(id(read)) == number] for number in known]
    beside = [read for read in reads if id(read) not in numbers]
    counted = max(map(_inner, beside), default=0)
    if len(known) < 2 or not _follow(attempts) or any(map(_ends_untold, beside)):
        return []
    if any(_inner(read) for logs in attempts for read in logs):
        return [] if counted else _in_turn(reads, attempts)
    first = known[0] if counted and counted == known[-1] - known[0] else 0
    by = {id(read): 0 if _inner(read) or _of_kernel(read) else known[-1] - first for read in beside}
    by |= {one: number - first for one, number in numbers.items()}
    return [_later(read, by[id(read)] - read.source.attempt) for read in reads]


def _in_turn(reads: Sequence[LogRead], attempts: Sequence[Sequence[LogRead]]) -> list[LogRead]:
    """Counted through, where an attempt has restarts of its own."""
    by: dict[int, int] = {}
    first = 0
    for logs in attempts:
        by |= {id(read): first - read.source.attempt for read in logs}
        first += 1 + max(map(_inner, logs))
    return [_later(read, by.get(id(read), 0 if _of_kernel(read) else first - 1)) for read in reads]


def _restarted(reads: Sequence[LogRead]) -> list[LogRead]:
    """A container's earlier log and that of its last start, where all containers of the job were started again, or came
    in place of others when those had ended."""
    before = {read.source.id for read in reads if _PREVIOUS.search(read.source.id)}
    names = {_PREVIOUS.sub("", name) for name in before}
    earlier = [read for read in reads if read.source.id in before]
    job = [read for read in reads if read.source.id not in before and _of_the_job(read)]
    again = [read for read in job if _CURRENT.sub("", read.source.id) in names]
    numbered = any(read.source.attempt for read in reads)
    if not again or numbered or not all(_behind(earlier, read) for read in job if read not in again):
        return []
    first = 1 + max((_inner(read) for read in earlier), default=0)
    stays = before | {read.source.id for read in reads if _of_kernel(read)}
    return [read if read.source.id in stays else _later(read, first) for read in reads]


def _appended(reads: Sequence[LogRead]) -> Sequence[LogRead]:
    """Logs of ranks to which each start was appended: most of them tell of several, and they have the last one in
    common, whoever was not there at first or fell before he had said a word; but for a log that had ended by then."""
    reads = _with_the_others(reads)
    ranks = [read for read in reads if read.source.rank is not None and _of_the_job(read)]
    again = [read for read in ranks if _told(read, "begun anew")]
    last = max(map(_inner, again), default=0)
    if again and 2 * len(again) <= len(ranks):
        return [_at_once(read) if _told(read, "appended") else read for read in reads]
    if not last or any(read.source.attempt for read in reads) or all(_inner(read) == last for read in ranks):
        return reads
    times = [e.utc_ns for read in again if _inner(read) == last for e in read.events if e.attempt == last]
    begun = min((time for time in times if time is not None), default=0)
    by = {id(read): last - _inner(read) for read in ranks if not _over(read, begun)}
    return [_later(read, by.get(id(read), 0)) for read in reads]


def _with_the_others(reads: Sequence[LogRead]) -> Sequence[LogRead]:
    """One rank's log tells that it fell and was begun once more; where the others' first lines stand again at the same
    time, without a word about an end, they were begun anew with it."""
    ranks = [read for read in reads if read.source.rank is not None]
    fallen = [read for read in ranks if _inner(read) == 1 and _told(read, "appended")]
    begun = {fact.value for read in fallen for fact in _told(read, "head again")}
    if not begun or max(begun) - min(begun) > _BESIDE_S or any(len(_told(read, "head again")) != 1 for read in fallen):
        return reads
    beside = {
        id(read): fact.line or 0
        for read in ranks
        for fact in _told(read, "head again")
        if not _inner(read) and min(begun) - _BESIDE_S <= fact.value <= max(begun) + _BESIDE_S
    }
    if 2 * (len(fallen) + len(beside)) <= len(ranks):
        return reads
    return [_from(read, beside[id(read)]) if id(read) in beside else read for read in reads]


def _told(read: LogRead, name: str) -> list[Fact]:
    return [fact for fact in read.facts if fact.name == name]


def _from(read: LogRead, line: int) -> LogRead:
    events = [replace(event, attempt=event.attempt + (event.seq >= line)) for event in read.events]
    return replace(read, events=events, facts=[*read.facts, Fact("begun anew", 1, read.source.id)])


def _at_once(read: LogRead) -> LogRead:
    """One rank that somebody has started again is no start of the job."""
    facts = [fact for fact in read.facts if fact.name not in ("begun anew", "appended")]
    return replace(read, events=[replace(event, attempt=read.source.attempt) for event in read.events], facts=facts)


def _over(read: LogRead, time: int) -> bool:
    ended = max((event.utc_ns for event in read.events if event.utc_ns is not None), default=time)
    return ended < time


def _behind(earlier: Sequence[LogRead], read: LogRead) -> bool:
    """It begins when all of them have ended, by clocks as they are written."""
    spans = [one.written for one in earlier]
    return read.written is not None and all(span is not None and span[1] <= read.written[0] for span in spans)


def _replaced(reads: Sequence[LogRead]) -> list[LogRead]:
    """Pods to whose names a controller adds letters of its own: the next one of a name begins when the one before it
    has ended, and the others beside it then."""
    job = [read for read in reads if _of_the_job(read)]
    if any(read.source.attempt or _inner(read) or read.written is None or not _drawn(read) for read in job):
        return []
    of_a_name: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for read in job:
        of_a_name[_drawn(read)].append(read.written or (0.0, 0.0))
    spans = [sorted(told) for told in of_a_name.values()]
    starts = [start for start, _ in max(spans, key=len, default=[])]
    if len(starts) < 2 or any(now[1] > then[0] for told in spans for now, then in pairwise(told)):
        return []
    begun = {id(read): max(bisect(starts, (read.written or (0.0, 0.0))[0] + _BESIDE_S) - 1, 0) for read in job}
    last = len(starts) - 1
    return [_later(read, begun.get(id(read), 0 if _of_kernel(read) else last)) for read in reads]


def _drawn(read: LogRead) -> str:
    """What stands before those letters in a pod's name; nothing where there are none."""
    name = read.source.id.rpartition("/")[2]
    found = _LETTERS.search(name)
    return name[: found.start()] if found else ""


def _inner(read: LogRead) -> int:
    """How often its own launcher tells that it has started its processes again."""
    return max((event.attempt for event in read.events), default=read.source.attempt) - read.source.attempt


def _of_the_job(read: LogRead) -> bool:
    """By more than a table's word that it has completed."""
    return any(event.kind in _OF_THE_JOB and not event.fields.get("stepless") for event in read.events)


def _ends_untold(read: LogRead) -> bool:
    """A log of the job itself that counts no attempts: which of them it tells of nobody knows."""
    return not _inner(read) and not _of_kernel(read) and any(e.kind in ("exit", "traceback") for e in read.events)


def _of_kernel(read: LogRead) -> bool:
    return any(word in event.text for event in read.events for word in _KERNEL)


def _follow(attempts: Sequence[Sequence[LogRead]]) -> bool:
    """Each log of an attempt begins when the one of the same name in the attempt before has ended, and none ends later
    than all of the next have begun, as far as their clocks tell; where one has no clock, most of those that have a log
    of an earlier attempt must have one of the last."""
    begins = [[read.began for read in logs if read.began is not None] for logs in attempts]
    ends = [[read.ended for read in logs if read.ended is not None] for logs in attempts]
    names = [{_SAID.sub("#", read.source.id): read for read in logs} for logs in attempts]
    for now, then in pairwise(range(len(attempts))):
        same = [(names[now][name], names[then][name]) for name in names[now].keys() & names[then].keys()]
        told = [(one.ended, two.began) for one, two in same if one.ended is not None and two.began is not None]
        first = max(begins[then], default=0) if told else min(begins[then], default=0)
        if any(end > begin for end, begin in told) or (ends[now] and begins[then] and first < max(ends[now])):
            return False
    return all(begins) or all(2 * len(earlier.keys() & names[-1].keys()) >= len(earlier) for earlier in names)


def _jobs(reads: Sequence[LogRead]) -> list[list[LogRead]]:
    """The outputs of several Slurm jobs."""
    if not all(_WHOLE_OUTPUT.search(read.source.id) for read in reads):
        return []
    return _grouped(reads, [(int(read.source.job),) for read in reads])


def _siblings(reads: Sequence[LogRead]) -> list[list[LogRead]]:
    """Files, or folders of them, whose names differ in a number alone, the next of which begins after the one before it
    has ended: ranks and nodes write at the same time, and a log that is cut in pieces goes on at once."""
    shapes = {_NUMBER.sub("#", read.source.id) for read in reads if _of_the_job(read)}
    beside = [read for read in reads if shapes and _NUMBER.sub("#", read.source.id) not in shapes]
    reads = [read for read in reads if read not in beside]
    if len(reads) < 2 or any(read.source.attempt for read in reads):
        return []
    paths = [read.source.id.split("/") for read in reads]
    for depth in range(min(map(len, paths))):
        names = [path[depth] for path in paths]
        if len(set(names)) == 1:
            continue
        if len({_NUMBER.sub("#", name) for name in names}) > 1 or any(map(_OF_A_PLACE.search, names)):
            return []
        is_file = any(len(path) == depth + 1 for path in paths)
        if is_file and any(read.source.rank is not None for read in reads):
            return []
        ordered = _grouped(reads, [tuple(map(int, _NUMBER.findall(name))) for name in names])
        named = all(map(_ATTEMPT.search, names))
        if beside and not named and not all(map(_TIME.search, names)):
            return []  # what is told beside them may be of each
        return ordered if _one_after_another(ordered, named) else []
    return []


def _grouped(reads: Sequence[LogRead], numbers: Sequence[tuple[int, ...]]) -> list[list[LogRead]]:
    groups: dict[tuple[int, ...], list[LogRead]] = defaultdict(list)
    for read, number in zip(reads, numbers, strict=True):
        groups[number].append(read)
    return [groups[number] for number in sorted(groups)]


def _one_after_another(attempts: Sequence[Sequence[LogRead]], named: bool) -> bool:
    """By the clock; where no log has one, by what their names say they are."""
    begins = [[read.began for read in logs if read.began is not None] for logs in attempts]
    ends = [[read.ended for read in logs if read.ended is not None] for logs in attempts]
    if not all(begins):
        return named and not any(begins)
    return all(min(begins[n + 1]) - max(ends[n]) >= _APART_NS for n, _ in pairwise(range(len(attempts))))

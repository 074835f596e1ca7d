"""Logs of one job's attempts, one after the other: the last one is the one to judge."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

from paramedic.collect.logs import LogRead
from paramedic.model import Event

_WHOLE_OUTPUT = re.compile(r"(?:^|/)slurm-\d{2,12}(?:\.batch)?\.(?:out|err|log)$")
_NUMBER = re.compile(r"\d{1,20}")
_ATTEMPT = re.compile(r"(?:attempt|try|retry|restart|relaunch|resubmit)[-_.]?\d{1,5}", re.I)
_OF_A_PLACE = re.compile(
    r"(?:rank|node|host|worker|task|proc|process|gpu|pod|log|device|master|chief|actor|stage|group|shard|trial|fold"
    r"|seed|slice|launcher|server|rdzv|local|global|dmesg|kern|stdout|stderr|ip|cn|nid)[-_.]?\d",
    re.I,
)
"""Numbers that say where something ran, or which of several that ran side by side."""
_APART_NS = 60_000_000_000
_KERNEL = (" kernel: ", "NVRM: ")
_OF_THE_JOB = ("progress", "exit", "traceback", "stack")


def in_order(reads: Sequence[LogRead]) -> Sequence[LogRead]:
    """With their events counted by attempts, where all that is there are logs of attempts."""
    attempts = _jobs(reads) or _siblings(reads)
    if len(attempts) < 2:
        return reads
    by: dict[int, int] = {}
    first = 0
    for logs in attempts:
        by |= dict.fromkeys(map(id, logs), first)
        first += 1 + max((event.attempt for log in logs for event in log.events), default=0)
    return [_later(read, by[id(read)]) for read in reads]


def beside_attempts(events: Sequence[Event]) -> Sequence[Event]:
    """A kernel's log knows of no attempts: what it says belongs to the one that ran then, by clocks of one kind."""
    if not any(event.attempt for event in events):
        return events
    of_the_job = {event.source for event in events if event.attempt or event.kind in _OF_THE_JOB}
    logs = {e.source for e in events if e.source not in of_the_job and any(word in e.text for word in _KERNEL)}
    heard = _heard(events, of_the_job) if logs else []
    clocks = {event.zoned for event in events if event.utc_ns is not None}
    if len(heard) < 2 or len(clocks) != 1:
        return events
    return [
        replace(event, attempt=_nearest(event.utc_ns, heard))
        if event.source in logs and event.utc_ns is not None
        else event
        for event in events
    ]


def _heard(events: Sequence[Event], sources: Collection[str]) -> list[tuple[int, int, int]]:
    """Each attempt's number, and when it was heard of first and last; nothing where they do not follow each other."""
    times: dict[int, list[int]] = defaultdict(list)
    for event in events:
        if event.utc_ns is not None and event.source in sources and event.kind != "metric":
            times[event.attempt].append(event.utc_ns)
    heard = [(number, min(said), max(said)) for number, said in sorted(times.items())]
    return heard if all(one[2] < two[1] for one, two in pairwise(heard)) else []


def _nearest(time: int, heard: Sequence[tuple[int, int, int]]) -> int:
    return min(heard, key=lambda one: max(one[1] - time, time - one[2], 0))[0]


def _later(read: LogRead, by: int) -> LogRead:
    events = [replace(event, attempt=event.attempt + by) for event in read.events]
    return replace(read, source=replace(read.source, attempt=read.source.attempt + by), events=events)


def _jobs(reads: Sequence[LogRead]) -> list[list[LogRead]]:
    """The outputs of several Slurm jobs."""
    if not all(_WHOLE_OUTPUT.search(read.source.id) for read in reads):
        return []
    return _grouped(reads, [(int(read.source.job),) for read in reads])


def _siblings(reads: Sequence[LogRead]) -> list[list[LogRead]]:
    """Files, or folders of them, whose names differ in a number alone, the next of which begins after the one before it
    has ended: ranks and nodes write at the same time, and a log that is cut in pieces goes on at once."""
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

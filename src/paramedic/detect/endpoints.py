"""Transfers that failed name both of their ends: the end that all of them have is where the fault lies."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paramedic.detect.match import on_events
from paramedic.detect.places import NCCL_PROCESS, rank_by_nccl
from paramedic.detect.where import places
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_ENDS = (
    ("localGid", regex(r"\blocalGid ?([0-9a-fA-F:.]{2,45}) {1,4}remoteGids? ?([0-9a-fA-F:.]{2,45})")),
    (
        "Peer EFA addr",
        regex(
            r"\bMy EFA addr: ?\S{0,20}?\[([0-9a-fA-F:]{2,45})\]\S{0,40} .{0,80}?"
            r"\bPeer EFA addr: ?\S{0,20}?\[([0-9a-fA-F:]{2,45})\]"
        ),
    ),
)
"""As NCCL prints it of InfiniBand, and libfabric of EFA."""
_PEERS = 2


class _Transfer(NamedTuple):
    own: str
    peer: str
    event: Event


def one_adapter(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """It failed with several others, each of which failed with it alone, and it lives: it says so itself. Where it says
    nothing its process may have died, which is another's story."""
    failed = [one for word, ends in _ENDS for one in _transfers(run, word, ends)]
    by_attempt: dict[int, list[_Transfer]] = defaultdict(list)
    for one in failed:
        by_attempt[one.event.attempt].append(one)
    for among in by_attempt.values():
        shared = set.intersection(*({one.own, one.peer} for one in among))
        others = {one.peer if one.own in shared else one.own for one in among}
        own = [one.event for one in among if one.own in shared]
        if len(shared) != 1 or len(others) < _PEERS or not own:
            continue
        known = places(run)
        ranks = {rank for event in own if (rank := rank_by_nccl(event, known)) is not None}
        theirs = [one.event for one in among if one.own not in shared]
        fields = {"adapter": next(iter(shared)), "times": str(len(among)), "peers": str(len(others)), **_place(own)}
        yield on_events(rule, [own[0], *theirs[:2]], sorted(ranks) if len(ranks) == 1 else (), fields)


def _place(own: Sequence[Event]) -> dict[str, str]:
    """The host of the adapter and the name that it has there, where all of its own words agree."""
    by = [(NCCL_PROCESS.match(event.text), event) for event in own]
    hosts = {event.host or (said[1] if said else "") for said, event in by} - {""}
    names = {said[1] for event in own if (said := _NAME.search(event.text)) is not None}
    host = hosts.pop() if len(hosts) == 1 else ""
    fields = {"host": host, "hosts": host} if host else {}
    fields |= {"hca": names.pop()} if len(names) == 1 else {}
    instances = {said[1] for event in own if (said := _INSTANCE.search(event.text)) is not None}
    return fields | ({"instance": instances.pop()} if len(instances) == 1 else {})


_NAME = regex(r"\bhca (\w[\w.-]{1,30})")
_INSTANCE = regex(r"\bMy host id: (i-[0-9a-f]{4,20})\b")


def _transfers(run: Run, word: str, ends: re.Pattern[str]) -> Iterator[_Transfer]:
    for event in run.saying(word, "line"):
        if (said := ends.search(event.text)) is not None and said[1] != said[2]:
            yield _Transfer(said[1].lower(), said[2].lower(), event)

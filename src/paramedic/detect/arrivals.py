"""Who always comes last: each rank's GPU measured how long a collective took it, and who comes last waits for nobody.

The clocks of the hosts do not matter, for each duration was measured by one GPU alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paramedic.detect.calls import Group, groups
from paramedic.detect.once import once
from paramedic.model import Event, Run

_LEAST_MS = 20
_TIMES = 3
"""Even who waits least waits for so many times as long as the last one needs."""
_OFTEN = 10
_ALWAYS = 0.9
_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Late:
    """`rank` is the last to come to a group, again and again, and for `held_ms` of `span_ms` the others wait for it."""

    rank: int
    group: Group
    times: int
    held_ms: int
    span_ms: int

    @property
    def events(self) -> list[Event]:
        others = (part.event for rank, part in sorted(self.group.parts.items()) if rank != self.rank)
        return [self.group.parts[self.rank].event, *list(others)[:1]]


@once
def always_last(run: Run) -> Late | None:
    """One rank alone, and the first of a chain: who is late since it waits in another group is not at fault."""
    found = [late for group in groups(run) if (late := _of(group))]
    begun = {
        late.rank
        for late in found
        if not any(late.rank in other.group.members for other in found if other.rank != late.rank)
    }
    return max((late for late in found if late.rank in begun), key=_weight, default=None) if len(begun) == 1 else None


def _weight(late: Late) -> int:
    return late.held_ms


def _of(group: Group) -> Late | None:
    """Nobody who was late once, or in one part of the record only."""
    if len(group.parts) < max(2, len(group.members)):
        return None
    waited = [*_waited(group)]
    ranks = [rank for rank, _ in waited]
    last = max({*ranks}, key=ranks.count, default=-1)
    half = len(ranks) // 2
    if len(ranks) < _OFTEN or min(_share(ranks[:half], last), _share(ranks[half:], last)) < _ALWAYS:
        return None
    held = sum(wait for rank, wait in waited if rank == last)
    span = max(part.span_ms for part in group.parts.values())
    return Late(last, group, ranks.count(last), held, span) if held >= _SHARE * span > 0 else None


def _share(ranks: Sequence[int], one: int) -> float:
    return ranks.count(one) / len(ranks)


def _waited(group: Group) -> Iterator[tuple[int, int]]:
    """(who came last, how long even the next to last waited for it) of each collective in which that was long."""
    parts = [*group.parts.items()]
    for seq, own in parts[0][1].durations.items():
        took = sorted((part.durations.get(seq, -1), rank) for rank, part in parts) if own >= 0 else [(-1, 0)]
        if took[0][0] >= 0 and took[1][0] - took[0][0] >= _LEAST_MS and took[1][0] >= _TIMES * took[0][0]:
            yield took[0][1], took[1][0] - took[0][0]

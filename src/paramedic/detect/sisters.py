"""Groups of one kind do the same in other parts of the job: what those called tells which of two ranks is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from paramedic.detect.calls import Group, Part, Signature
from paramedic.detect.waits import Waits
from paramedic.regex import regex

_BEFORE = 3
"""So many calls before must be the same: stages of a pipeline have groups of one name that call other things."""
_NUMBER = regex(r"[_ -]?\d{1,6}")


def called_by_sisters(groups: Sequence[Group], group: Group, seq: int) -> set[Signature]:
    """What groups of the same kind called at this number, after the same calls."""
    mine = [part for part in group.parts.values() if all(seq - n in part.calls for n in range(1, _BEFORE + 1))]
    before = _signatures(mine[0], seq) if mine else []
    theirs = (part for sister in _sisters(groups, group) for part in sister.parts.values() if seq in part.calls)
    return {part.signatures[part.calls[seq]] for part in theirs if before and _signatures(part, seq) == before}


def _signatures(part: Part, seq: int) -> list[Signature | None]:
    numbers = (part.calls.get(seq - n) for n in range(1, _BEFORE + 1))
    return [None if number is None else part.signatures[number] for number in numbers]


def strayed(found: Waits, ranks: Iterable[int]) -> frozenset[int]:
    """Of ranks that stand in sends and receives, those who stand in another one than whoever has their place in groups
    of the same kind, while for the others that is as it should be."""
    known = {rank: is_odd for rank in ranks if (is_odd := _is_unlike(found, rank)) is not None}
    odd = frozenset(rank for rank in known if known[rank])
    return odd if len(odd) < len(known) else frozenset()


def _is_unlike(found: Waits, rank: int) -> bool | None:
    number, place = found.at[rank]
    group = found.groups[number]
    here = group.parts[rank].sent.get(-1 - place) if place < 0 else None
    if here is None or rank not in group.members:
        return None
    count, op = here
    mine = _by_count(group.parts[rank])
    twins = [_by_count(part) for part in _twins(found.groups, group, group.members.index(rank))]
    before = range(count - _BEFORE, count)
    alike = {
        twin[count] == op
        for twin in twins
        if count in twin and all(n in mine and twin.get(n) == mine[n] for n in before)
    }
    return not alike.pop() if len(alike) == 1 else None


def _by_count(part: Part) -> dict[int, str]:
    return dict(part.sent.values())


def _twins(groups: Sequence[Group], group: Group, place: int) -> Iterator[Part]:
    for sister in _sisters(groups, group):
        if sister.members[place] in sister.parts:
            yield sister.parts[sister.members[place]]


def _sisters(groups: Sequence[Group], group: Group) -> Iterator[Group]:
    for one in groups:
        same_kind = _NUMBER.sub("", one.desc) == _NUMBER.sub("", group.desc)
        if same_kind and len(one.members) == len(group.members) and not {*one.members} & {*group.members}:
            yield one

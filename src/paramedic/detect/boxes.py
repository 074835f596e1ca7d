"""Who called what: the collectives that ranks called from Python, compared. The black box of a killed rank is as good
as any."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise

from paramedic.detect.calls import natural
from paramedic.model import Run

_SAME_SIZES = frozenset({"all_reduce", "reduce", "broadcast", "reduce_scatter_tensor", "all_gather_into_tensor"})
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter", "broadcast_object_list", "gather_object"})
_TO_A_PEER = frozenset({"send", "isend", "recv", "irecv", "send_object_list", "recv_object_list"})
_COLUMNS = 8
_MOST_RANKS = 4096


@dataclass(frozen=True, slots=True)
class Call:
    """The number counts the calls in its group, of this rank."""

    group: str
    number: int
    op: str
    sizes: str
    dtype: str
    peer: str
    place: str
    done: bool

    @property
    def like(self) -> tuple[str, ...]:
        """What must be the same on all ranks of the group."""
        sizes = (self.sizes, self.dtype) if self.op in _SAME_SIZES else ()
        return (self.op, *sizes, *((self.peer,) if self.op in _ROOTED else ()))

    def beside(self, other: Call) -> str:
        """What is else than in the other."""
        if (self.op, self.place) == (other.op, other.place) and self.sizes:
            return f"it with {self.sizes} {self.dtype}"
        return self.shown

    @property
    def shown(self) -> str:
        of = f" of {self.sizes} {self.dtype}" if self.sizes else ""
        peer = f" with rank {self.peer}" if self.op in _TO_A_PEER and self.peer else ""
        return f"{self.op}{of}{peer} at {self.place}"


@dataclass(frozen=True, slots=True)
class Odd:
    """The ranks that do otherwise, what they do, and what the others do."""

    ranks: tuple[int, ...]
    odd: str
    usual: str
    each: Mapping[int, Call] = field(default_factory=dict)
    """The call of every rank, where that is one call."""


def calls_of(run: Run) -> dict[int, list[Call]]:
    found: dict[int, list[Call]] = {}
    for event in run.of_kind("calls"):
        if event.rank is not None and len(found) < _MOST_RANKS:
            calls = [call for call in map(_call, str(event.fields.get("made", "")).split("\n")) if call]
            if calls:
                found[event.rank] = calls
    return found


def _call(said: str) -> Call | None:
    columns = said.split("\t")
    if len(columns) != _COLUMNS or (number := natural(columns[2], -1)) < 0:
        return None
    done, group, _, op, sizes, dtype, peer, place = columns
    return Call(group, number, op, sizes, dtype, peer, place, done == "D")


def unlike(calls: Mapping[int, Sequence[Call]]) -> Odd | None:
    """The first call of a group that was not the same for all its ranks, and out of which some never came."""
    at: dict[tuple[str, int], dict[int, Call]] = defaultdict(dict)
    for rank, made in calls.items():
        for call in made:
            if call.op not in _TO_A_PEER:
                at[call.group, call.number][rank] = call
    for _, here in sorted(at.items(), key=lambda item: item[0][1]):
        kinds = Counter(call.like for call in here.values())
        if len(kinds) < 2 or all(call.done for call in here.values()):
            continue
        (most, votes), *_ = kinds.most_common(1)
        odd = sorted(rank for rank, call in here.items() if call.like != most) if votes > len(here) / 2 else []
        usual = next(call for call in here.values() if call.like == most)
        other = next(call for call in here.values() if call.like != most)
        return Odd(tuple(odd), other.shown, usual.shown, dict(sorted(here.items())))
    return None


def elsewhere(
    calls: Mapping[int, Sequence[Call]], groups: Mapping[str, Set[int]], backward: Iterable[int], ranks: Set[int]
) -> Odd | None:
    """Who stands elsewhere than those who wait for him, where everybody waits in some collective: the few whose call
    does not follow the one before it as it has always done; else those who are not where most are."""
    standing = {rank: made[-1] for rank, made in calls.items() if not made[-1].done}
    in_backward = {rank for rank in backward if rank not in standing}
    waits = {rank: _waits_for(rank, call, calls, groups, ranks) for rank, call in standing.items()}
    waits |= {rank: ranks - in_backward - {rank} for rank in in_backward}
    knot = _knot(waits, ranks)
    if len(knot) < 2:
        return None
    places = {
        rank: (standing[rank].op, standing[rank].place) if rank in standing else ("backward", "") for rank in knot
    }
    odd = {rank for rank in knot if rank in standing and not _as_before(calls[rank])}
    if not 0 < len(odd) < len(knot) / 2:
        (usual, votes), *_ = Counter(places.values()).most_common(1)
        odd = {rank for rank, place in places.items() if place != usual} if votes > len(knot) / 2 else odd
    odd = odd if len(odd) < len(knot) else set()
    theirs = [standing[rank].shown if rank in standing else "the backward pass" for rank in sorted(odd)]
    others = [standing[rank].shown if rank in standing else "the backward pass" for rank in sorted(knot - odd)]
    return Odd(tuple(sorted(odd)), " and ".join(dict.fromkeys(theirs)), " and ".join(dict.fromkeys(others)))


def _waits_for(
    rank: int, call: Call, calls: Mapping[int, Sequence[Call]], groups: Mapping[str, Set[int]], ranks: Set[int]
) -> Set[int]:
    if call.op in _TO_A_PEER and call.peer:
        return {natural(call.peer, -1)} & ranks
    entered = {
        other for other, made in calls.items() if any(c.group == call.group and c.number >= call.number for c in made)
    }
    return groups.get(call.group, ranks) - entered - {rank}


def _knot(waits: Mapping[int, Set[int]], ranks: Set[int]) -> Set[int]:
    """Ranks that wait for nobody but each other: whoever else waits, waits for one of them."""
    reach: dict[int, Set[int]] = {}
    for rank in waits:
        seen: set[int] = set()
        todo = [rank]
        while todo:
            for other in waits.get(todo.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        reach[rank] = seen
    sinks = [rank for rank in waits if rank in reach[rank] and all(rank in reach.get(o, ()) for o in reach[rank])]
    return frozenset({*sinks}) & ranks


def _as_before(made: Sequence[Call]) -> bool:
    """Its last call follows the one before it as it has done earlier."""
    kinds = [(one.op, one.peer, one.group, one.place) for one in made]
    return len(kinds) > 1 and (kinds[-2], kinds[-1]) in set(pairwise(kinds[:-1]))

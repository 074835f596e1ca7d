"""Who waits for whom: a rank that is stuck in one group is late in all its others, so blame is sought backwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paramedic.detect.calls import Call, Group, Part, natural

MOST_OPEN = 1000
"""So many sends and receives that are not finished are kept of a rank and group."""
DONE = (-1, Call("nothing", "", "", "", "", ""))
"""The peer has finished its half: a batch is finished when all of it is."""
Op = tuple[int, int]
"""Number of the group, and the sequence number; of a send or receive -1 - its place."""


@dataclass
class Waits:
    """Where each rank stands, and for which ranks it therefore waits."""

    groups: Sequence[Group]
    at: dict[int, Op] = field(default_factory=dict)
    """The first call that a rank has not finished."""
    behind: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """For whom each waits: those that have not come, or that are held up elsewhere before it."""
    unheard: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """For whom each may wait: members without a dump."""
    unanswered: dict[int, tuple[Call, int]] = field(default_factory=dict)
    """The send or receive, and the peer that has not posted the other half."""
    aside: frozenset[int] = frozenset()
    """Ranks whose record is of another moment: what they do now is not known."""

    @property
    def idle(self) -> frozenset[int]:
        """Somebody waits for them, and they wait for nobody: they never came back from their own code."""
        return frozenset(rank for some in self.behind.values() for rank in some if rank not in self.at)

    @property
    def ends(self) -> list[Op]:
        """Calls whose ranks wait for nobody who is known to be late: all members have entered them."""
        held = {op for rank, op in self.at.items() if self.behind.get(rank) or self.unheard.get(rank)}
        return sorted({*self.at.values()} - held)

    @property
    def ring(self) -> frozenset[int]:
        """Ranks that wait for each other in a circle."""
        core = {rank for rank, some in self.behind.items() if some}
        while True:
            waited_for = {other for rank in core for other in self.behind[rank]}
            left = {rank for rank in core if rank in waited_for and core.intersection(self.behind[rank])}
            if left == core:
                return frozenset(core)
            core = left

    def held_by(self, ranks: frozenset[int]) -> frozenset[int]:
        """Who waits for them, directly or for somebody who does."""
        held: set[int] = set()
        while True:
            more = {
                rank for rank, some in self.behind.items() if rank not in held and (held | ranks).intersection(some)
            }
            if not more - ranks:
                return frozenset(held)
            held |= more - ranks

    def standing(self, op: Op) -> frozenset[int]:
        return frozenset(rank for rank, where in self.at.items() if where == op)


def waits(groups: Sequence[Group], aside: frozenset[int] = frozenset()) -> Waits:
    found = Waits(groups, aside=aside)
    parts = {rank: theirs for rank, theirs in _parts(groups).items() if rank not in aside}
    for rank, theirs in parts.items():
        if (op := _first_open(theirs)) is not None:
            found.at[rank] = op
    for rank, theirs in parts.items():
        if rank not in found.at and (op := _failed(groups, parts, theirs)) is not None:
            found.at[rank] = op
    for rank, (number, seq) in found.at.items():
        if seq < 0:
            _wait_for_peers(found, parts, rank, number, -1 - seq)
        else:
            _wait_for_all(found, parts, rank, number, seq)
    return found


_Parts = Mapping[int, Sequence[tuple[int, Part]]]


def _parts(groups: Sequence[Group]) -> _Parts:
    found: dict[int, list[tuple[int, Part]]] = {}
    for number, group in enumerate(groups):
        for rank, part in group.parts.items():
            found.setdefault(rank, []).append((number, part))
    return found


def _first_open(theirs: Sequence[tuple[int, Part]]) -> Op | None:
    """Over all its groups, the call that was made first."""
    unfinished = [(part.open_at, number, part) for number, part in theirs if part.open_at >= 0]
    if not unfinished:
        return None
    at, number, part = min(unfinished, key=lambda one: one[:2])
    peer = next((place for place, _, _ in part.peers if place == at), None)
    if peer is not None or not part.open:
        return number, -1 - at
    return number, part.open[0]


def _failed(groups: Sequence[Group], parts: _Parts, theirs: Sequence[tuple[int, Part]]) -> Op | None:
    """Gloo calls a collective finished that has failed. If somebody never entered the last one, it has."""
    number, part = max(theirs, key=lambda one: one[1].last_at)
    if part.event.fields.get("backend") != "gloo" or part.last not in part.calls:
        return None
    group = groups[number]
    absent = any(not _entered(group, parts, member, part.last) for member in group.members if member in parts)
    return (number, part.last) if absent else None


def _entered(group: Group, parts: _Parts, rank: int, seq: int) -> bool:
    """A rank whose record has wrapped may have left a group long ago that it no longer shows."""
    part = group.parts.get(rank)
    if part is not None:
        return part.last >= seq
    return any(other.wrapped for _, other in parts[rank])


def _wait_for_all(found: Waits, parts: _Parts, rank: int, number: int, seq: int) -> None:
    """The same for everybody who stands there, who have all entered it."""
    group = found.groups[number]
    beside = next((other for other in found.standing((number, seq)) if other in found.behind), None)
    if beside is not None:
        found.behind[rank], found.unheard[rank] = found.behind[beside], found.unheard[beside]
        return
    absent = [m for m in group.members if m in parts and not _entered(group, parts, m, seq)]
    there = [m for m in group.parts if m in parts and seq in group.parts[m].open]
    held = [m for m in there if found.at.get(m) != (number, seq)]
    found.behind[rank] = tuple(absent or held)
    found.unheard[rank] = tuple(m for m in group.members if m not in parts and m not in found.aside)


def _wait_for_peers(found: Waits, parts: _Parts, rank: int, number: int, place: int) -> None:
    """For those that have not posted the other half, or that are held up elsewhere before it; a batch has several."""
    group = found.groups[number]
    behind: list[int] = []
    unheard: list[int] = []
    for told, call in [(told, call) for at, told, call in group.parts[rank].peers if at == place]:
        ends = ends_of(told, group)
        peer = (ends[1] if ends[0] == rank else ends[0]) if ends else None
        if peer is None or peer in found.aside:
            continue
        half = counterpart(group, rank, place, told)
        if peer not in parts:
            unheard.append(peer)
        elif half is None:
            behind.append(peer)
            found.unanswered.setdefault(rank, (call, peer))
        elif half is not DONE and found.at.get(peer) != (number, -1 - half[0]):
            behind.append(peer)
    found.behind[rank] = tuple(dict.fromkeys(behind))
    found.unheard[rank] = tuple(dict.fromkeys(unheard))


def counterpart(group: Group, rank: int, place: int, told: str) -> tuple[int, Call] | None:
    """(place, call) of the other half of `send 0->1`, which is `recv 1<-0`: they are matched in turn. Where records
    begin in the middle, as many are taken to be done on both sides."""
    ends = ends_of(told, group)
    if ends is None:
        return None
    here, there = group.parts[rank], group.parts.get(ends[1] if ends[0] == rank else ends[0])
    if there is None:
        return None
    other = other_half(told)
    mine, theirs = here.halves[told], there.halves.get(other, [])
    turn = next(turn for turn, (at, _) in enumerate(mine) if at == place)
    if not (here.wrapped or there.wrapped) and max(len(here.peers), len(there.peers)) < MOST_OPEN:
        turn += (here.posted.get(told, 0) - len(mine)) - (there.posted.get(other, 0) - len(theirs))
    return DONE if turn < 0 else theirs[turn] if turn < len(theirs) else None


def other_half(told: str) -> str:
    kind, _, pair = told.partition(" ")
    first, _, second = pair.replace("<-", "->").partition("->")
    return f"recv {second}<-{first}" if kind == "send" else f"send {second}->{first}"


def ends_of(told: str, group: Group) -> tuple[int, int] | None:
    """(source, destination) in ranks of the job, of `send 0->1` or `recv 1<-0`, which count within the group."""
    kind, _, pair = told.partition(" ")
    first, _, second = pair.replace("<-", "->").partition("->")
    if max(natural(first, len(group.members)), natural(second, len(group.members))) >= len(group.members):
        return None
    source, destination = (first, second) if kind == "send" else (second, first)
    return group.members[int(source)], group.members[int(destination)]

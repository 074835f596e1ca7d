"""How ranks' recorded calls differ, and what is shown of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from paramedic.detect.calls import Call, Group, Part
from paramedic.detect.waits import Op, Waits
from paramedic.model import Event

CALLED_BY = " ← "
"""In a site, between a line and the one that calls it."""
NO_CALL = Call("nothing", "", "", "", "", "")


@dataclass(frozen=True, slots=True)
class Difference:
    """`ranks` are at fault, or nobody where it cannot be decided; `waiting` are their victims."""

    kind: str
    """missing, unheard, unstarted, stalled, ahead, order, type, dtype, shape, root, groups, p2p or p2p-size."""
    group: str
    seq: int
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    op: str
    odd: str = ""
    usual: str = ""
    odd_site: str = ""
    usual_site: str = ""
    confidence: float = 0.9
    events: tuple[tuple[str, Event], ...] = field(default=(), repr=False)
    """What the record of some ranks shows, those at fault first."""
    elsewhere: bool = False
    """The tensors differ because the calls do: another place in the program, or what the others call soon after."""
    age_ms: int = 0
    """For how long it has been waited, as far as the record tells, if that is too long."""
    doubtful: bool = False
    """A job that goes on may look like this at the moment of its record; a timeout in a log outweighs that."""
    fewer: bool = False
    """Several stopped at one call, and the others go on as in the steps before, or a stage sends fewer micro-batches
    than all others await: they had no more of them."""
    shard: bool = False
    """What differs is a shard of the parameters."""
    revised: bool = False
    """Those at fault run another revision of the program than the others."""
    unposted: bool = False
    """Halves are waited for that nobody has posted, and no other call in their place."""
    first: bool = False
    """Nobody has ever finished a call: the job hangs in its set-up."""


def of_waits(
    found: Waits, kind: str, ranks: frozenset[int], waiting: frozenset[int], *, sure: float, op: Op | None = None
) -> Difference:
    """With where the waiting stand, and the last that those at fault did in that group, or anywhere."""
    number, seq = op or Counter(found.at.values()).most_common(1)[0][0]
    group = found.groups[number]
    stands = min((rank for rank in found.standing((number, seq))), default=min(waiting, default=0))
    call = call_of(group, stands, seq)
    last = _last_call(found, min(ranks, default=-1))
    shown = [*sorted(ranks)[:2], *sorted(found.standing((number, seq)) - ranks)[:2]]
    return Difference(
        kind=kind,
        group=group.told,
        seq=seq if seq >= 0 else group.parts[stands].last,
        ranks=tuple(sorted(ranks)),
        waiting=tuple(sorted(waiting)),
        op=call.op,
        odd=last.told if last else "",
        usual=call.told,
        odd_site=last.site if last else "",
        usual_site=call.site,
        confidence=sure,
        events=tuple(shows(group, rank, seq) for rank in shown if rank in group.parts),
        first=all(_has_finished_nothing(part) for one in found.groups for part in one.parts.values()),
    )


def _has_finished_nothing(part: Part) -> bool:
    return len(part.calls) == len(part.open) and not part.known_peers and not part.wrapped and part.completed < 1


def _last_call(found: Waits, rank: int) -> Call | None:
    theirs = [group.parts[rank] for group in found.groups if rank in group.parts and group.parts[rank].calls]
    part = max(theirs, key=lambda one: one.last_at, default=None)
    return part.call(max(part.calls)) if part else None


def call_at(found: Waits, rank: int) -> Call:
    number, seq = found.at[rank]
    return call_of(found.groups[number], rank, seq)


def part_at(found: Waits, rank: int) -> Part:
    return found.groups[found.at[rank][0]].parts[rank]


def call_of(group: Group, rank: int, seq: int) -> Call:
    part = group.parts.get(rank)
    if part is None:
        return NO_CALL
    if seq < 0:
        return next((call for at, _, call in part.peers if at == -1 - seq), NO_CALL)
    return part.call(seq) or NO_CALL


def shows(group: Group, rank: int, seq: int) -> tuple[str, Event]:
    part = group.parts[rank]
    call = call_of(group, rank, seq)
    at = f" at {call.site}" if call.site else ""
    if call is not NO_CALL:
        number = f"collective number {seq}" if seq >= 0 else "unanswered"
        return f"rank {rank}, {group.told}: {number} is {call.told}{at}", part.event
    last = part.call(max(part.calls)) if part.calls else None
    if last is None:
        return f"rank {rank}, {group.told}: no collective recorded", part.event
    at = f" at {last.site}" if last.site else ""
    return (
        f"rank {rank}, {group.told}: never entered collective number {seq}; the last is {part.last}, {last.told}{at}",
        part.event,
    )

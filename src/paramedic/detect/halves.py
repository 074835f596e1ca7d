"""Sends and receives that do not meet: which rank posted the wrong half, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from paramedic.detect.calls import Call, Group
from paramedic.detect.difference import CALLED_BY, Difference, call_at, of_waits, part_at
from paramedic.detect.sisters import strayed
from paramedic.detect.waits import DONE, Waits, counterpart, ends_of, other_half


def unequal_sizes(found: Waits) -> Iterator[Difference]:
    """Both stand in their halves, but one is larger: whichever has sent or received such a size before is right."""
    for rank, (number, seq) in found.at.items():
        group = found.groups[number]
        for at, told, call in group.parts[rank].peers if seq < 0 else ():
            ends = ends_of(told, group)
            half = counterpart(group, rank, at, told) if ends and ends[0] == rank and at == -1 - seq else None
            if ends is None or half is None or half is DONE or call.bulk == half[1].bulk:
                continue
            if found.at.get(ends[1]) == (number, -1 - half[0]):
                yield _unequal_halves(group, at, (rank, call), (ends[1], half[1]), told)
                return


def _unequal_halves(group: Group, at: int, one: tuple[int, Call], other: tuple[int, Call], told: str) -> Difference:
    (rank, call), (peer, theirs) = one, other
    part = group.parts[rank]
    known = f"{call.op} {theirs.outs or theirs.ins}" in part.known_peers
    peer_known = f"{theirs.op} {call.ins or call.outs}" in group.parts[peer].known_peers
    odd = rank if known and not peer_known else peer if peer_known and not known else None
    mine, usual = (theirs, call) if odd == peer else (call, theirs)
    return Difference(
        kind="p2p-size",
        group=group.told,
        seq=at,
        ranks=() if odd is None else (odd,),
        waiting=() if odd is None else tuple({rank, peer} - {odd}),
        op=told,
        odd=mine.told,
        usual=usual.told,
        odd_site=mine.site,
        usual_site=usual.site,
        confidence=0.85,
        events=((f"{call.told}", part.event), (f"{theirs.told}", group.parts[peer].event)),
    )


def turned(found: Waits) -> Difference | None:
    """Of ranks whose halves do not meet, one alone posts what it has never finished from that line, which has always
    served other peers."""
    apart = {*found.ring, *found.unanswered, *(peer for _, peer in found.unanswered.values())}
    new = {rank: call for rank in sorted(apart) if (call := _new_from_there(found, rank)) is not None}
    if len(new) != 1:
        return None
    ((odd, call),) = new.items()
    rank = next((rank for rank, (_, peer) in sorted(found.unanswered.items()) if peer == odd), odd)
    one = of_waits(found, "p2p", frozenset([odd]), found.held_by(frozenset([odd])), sure=0.85, op=found.at[rank])
    return replace(one, odd=call.told, odd_site=call.site)


def _new_from_there(found: Waits, rank: int) -> Call | None:
    """The send or receive in which it stands, if its line has until now made such calls to others only."""
    number, place = found.at.get(rank, (0, 0))
    part = found.groups[number].parts.get(rank)
    for at, told, call in part.peers if part and place < 0 else ():
        line = _line(call.site)
        there = [op for op, site in part.done_peers if _line(site) == line] if part else []
        if at == -1 - place and line and told not in there and any(op[:4] == told[:4] for op in there):
            return call
    return None


def _line(site: str) -> str:
    """Without the line that calls it."""
    return site.partition(CALLED_BY)[0]


def crossed(found: Waits) -> Difference | None:
    """A rank whose own half nobody answers, and that does not answer another's: both ends of the mistake are its."""
    wrong = {peer for _, peer in found.unanswered.values() if peer in found.unanswered}
    if len(wrong) != 1:
        return None
    odd = wrong.pop()
    mine, _ = found.unanswered[odd]
    rank, (theirs, _) = next((rank, said) for rank, said in found.unanswered.items() if said[1] == odd)
    one = of_waits(found, "p2p", frozenset([odd]), found.held_by(frozenset([odd])), sure=0.85, op=found.at[rank])
    return replace(one, odd=mine.op, odd_site=mine.site, usual=theirs.op, usual_site=theirs.site)


def between_peers(found: Waits, ring: frozenset[int]) -> Difference | None:
    """Of ranks that wait for each other in sends and receives, one has not posted what several wait for."""
    if len(lost := strayed(found, ring)) == 1:
        return _strayed(found, *lost)
    if astray := _astray(found, ring):
        return astray
    if any(found.at[rank][1] >= 0 for rank in ring):
        return None
    asked = Counter(peer for _, peer in found.unanswered.values())
    (odd, most), *rest = asked.most_common() or [(-1, 0)]
    blamed = frozenset([odd] if odd in ring and most > 1 and all(count < most for _, count in rest) else [])
    shorter = False
    if blamed and _passes_on(found, odd):
        _, odd = found.unanswered[odd]
        blamed = frozenset([odd])
        shorter = True
    kinds = {call_at(found, rank).op.split(" ")[0] for rank in ring}
    if not blamed and len(ring) == 2 < len(found.at) and len(kinds) == 1:
        blamed = ring  # two that both send, or both receive, first
    op = next((found.at[rank] for rank, (_, peer) in sorted(found.unanswered.items()) if peer == odd), None)
    one = of_waits(found, "p2p", blamed, found.held_by(blamed or ring), sure=0.8 if blamed else 0.6, op=op)
    call = call_at(found, odd if blamed and odd in blamed else min(ring))
    return replace(one, odd=call.told, odd_site=call.site, unposted=True, fewer=shorter)


def _strayed(found: Waits, rank: int) -> Difference:
    """Whether it has one more to send or get than all others, or does another thing."""
    call, part = call_at(found, rank), part_at(found, rank)
    number, _ = part.sent[-1 - found.at[rank][1]]
    one = of_waits(found, "p2p", frozenset([rank]), found.held_by(frozenset([rank])), sure=0.85, op=found.at[rank])
    more = (number - 1, call.op) in part.sent.values()
    return replace(one, odd=call.told, odd_site=call.site, unposted=True, fewer=more)


def _passes_on(found: Waits, rank: int) -> bool:
    """It waits where one that asks it waits, and has passed on to that one all that it has got: the next micro-batch is
    what both have not got."""
    part = part_at(found, rank)
    mine, _ = found.unanswered.get(rank, (None, -1))
    if mine is None or not mine.op.startswith("recv ") or part.wrapped:
        return False
    got = part.posted.get(mine.op, 0) - len(part.halves.get(mine.op, ()))
    behind = [call for call, peer in found.unanswered.values() if peer == rank and _line(call.site) == _line(mine.site)]
    return any(call.op.startswith("recv ") and part.posted.get(other_half(call.op)) == got for call in behind)


def _astray(found: Waits, ring: frozenset[int]) -> Difference | None:
    """A half that nobody answers, in a ring that is only closed by it: who posted it never did so before and did so to
    the wrong one; else the peer has gone on without it."""
    lonely = [(rank, call, peer) for rank, (call, peer) in found.unanswered.items() if {rank, peer} <= ring]
    if len(lonely) != 1:
        return None
    rank, call, peer = lonely[0]
    part = part_at(found, rank)
    others = [count for told, count in part.posted.items() if told != call.op]
    if part.posted.get(call.op) == 1 and len(others) > 1 and min(others) > 1:
        one = of_waits(found, "p2p", frozenset([rank]), found.held_by(frozenset([rank])), sure=0.8, op=found.at[rank])
        return replace(one, odd=call.told, odd_site=call.site)
    if found.at[peer][1] < 0:
        return None
    one = of_waits(found, "p2p", frozenset([peer]), found.held_by(frozenset([peer])), sure=0.75, op=found.at[rank])
    theirs = call_at(found, peer)
    return replace(one, odd=theirs.told, odd_site=theirs.site)

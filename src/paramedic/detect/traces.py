"""Where the ranks' recorded collectives differ, and who is to blame.

By majority, and backwards along who waits for whom. Nobody is accused where neither decides.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from paramedic.detect.calls import Call, Group, Part, Signature, groups
from paramedic.detect.once import once
from paramedic.detect.sisters import called_by_sisters, strayed
from paramedic.detect.waits import DONE, Op, Waits, counterpart, ends_of, other_half, waits
from paramedic.model import Event, Run

_CONTEXTS = (12, 6, 3, 1)
"""So many calls before the difference are looked for earlier: what followed there is what was to come here."""
_NEAR = 16
_ALONE = 3
"""A rank is ahead if so many times more ranks stand together before the collective that it waits in."""
_FEW = 2
"""Ranks without a record are named if so many times more ranks have one: else the files were not all brought here."""
_MANY = 4
"""So many times more ranks than those whose record is of another moment are of one moment."""
_SHORT_MS = 30_000
"""So long a healthy job may wait for a rank that saves or evaluates alone; never longer than its timeout."""
_LATE = ("missing", "ahead", "unheard", "unstarted")
"""Kinds that only time tells from ranks which are a moment apart."""
_LONG_MS = 300_000
"""No collective of a healthy job takes so long; nor longer than its timeout."""

_FRAME = re.compile(r"(.{1,450}):(\d{1,9})( in .{1,90})")
_EVALUATES = re.compile(r" in \w*(?:valid|eval)\w*$", re.I)
CALLED_BY = " ← "
"""In a site, between a line and the one that calls it."""
_OF_ALL = ("all", "reduce_scatter")
"""Calls that end nowhere before everybody has come; the root of others may be done alone."""


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


@once
def differences(run: Run) -> list[Difference]:
    """The first thing that went wrong, and what else differs that did not follow from it."""
    waiting = _waiting(run)
    unlike = sorted((one for group in waiting.groups for one in _unlike(waiting.groups, group)), key=lambda one: one[0])
    found = [one for _, one in unlike[:1]] or [one for group in waiting.groups for one in _exchanged_unlike(group)][:1]
    found = found or [*_sizes_of_peers(waiting)] or [*_of_one_moment(waiting)]
    other = _of_another_revision(waiting.groups) if found else frozenset[int]()
    return [replace(one, revised=bool(one.ranks) and other.issuperset(one.ranks)) for one in found]


def standstill(run: Run) -> Difference | None:
    """The call in which all stand, if nothing differs."""
    return next(_stalled(_waiting(run)), None) if not differences(run) else None


@once
def _waiting(run: Run) -> Waits:
    return waits(groups(run))


def _of_another_revision(groups: Sequence[Group]) -> frozenset[int]:
    """The fewer ranks that made the same finished call by the same functions of the same files, but from other lines of
    all of them: between branches of one program only the innermost line changes."""
    for group in groups:
        classes = _alike(group)
        shared = set.intersection(*({*part.calls} - {*part.open} for part, _ in classes)) if len(classes) > 1 else set()
        for seq in sorted(shared, reverse=True)[:_NEAR]:
            sites: dict[str, list[int]] = {}
            for _, ranks in classes:
                sites.setdefault(_call(group, ranks[0], seq).site, []).extend(ranks)
            (usual, most), *rest = sorted(sites.items(), key=lambda item: -len(item[1]))
            odd = [rank for _, ranks in rest for rank in ranks]
            if 0 < len(odd) < len(most) and all(_same_functions(usual, site) for site, _ in rest):
                return frozenset(odd)
    return frozenset()


def _same_functions(one: str, other: str) -> bool:
    """`train.py:152 in log ← train.py:231 in fit` and `train.py:143 in log ← train.py:222 in fit`."""
    mine, theirs = ([_FRAME.fullmatch(frame) for frame in site.split(CALLED_BY)] for site in (one, other))
    if len(mine) != len(theirs) or len(mine) < 2:
        return False
    pairs = [(a.groups(), b.groups()) for a, b in zip(mine, theirs, strict=True) if a and b]
    alike = all(a[0] == b[0] and a[1] != b[1] and a[2] == b[2] for a, b in pairs)
    return len(pairs) == len(mine) and alike


# -- calls that differ at one sequence number ----------------------------------------------------------------------


def _unlike(groups: Sequence[Group], group: Group) -> Iterator[tuple[int, Difference]]:
    """(how early, the first difference of the group)."""
    classes = _alike(group)
    root = _root_differs(group, classes)
    for seq in sorted({seq for part, _ in classes for seq in part.calls}) if len(classes) > 1 else ():
        votes: dict[Signature, list[int]] = {}
        for part, ranks in classes:
            if (number := part.calls.get(seq)) is not None:
                votes.setdefault(part.signatures[number], []).extend(ranks)
        if root and root.seq == seq:
            break
        if len(votes) > 1 and (kind := _kind(group, seq, votes)):
            yield _place(group, seq), _differing(groups, group, seq, kind, votes)
            return
    if root:
        yield _place(group, root.seq), root


def _alike(group: Group) -> list[tuple[Part, list[int]]]:
    """Ranks that recorded the very same calls, together: only few kinds of them are then compared."""
    kinds: dict[int, tuple[Part, list[int]]] = {}
    for rank, part in group.parts.items():
        if part.calls:
            kinds.setdefault(id(part.calls), (part, []))[1].append(rank)
    return list(kinds.values())


def _kind(group: Group, seq: int, votes: Mapping[Signature, list[int]]) -> str:
    """What differs; nothing where all have finished it although it could not have been right."""
    if len({one.op for one in votes}) > 1:
        return "order" if _comes_near(group, seq, votes) else "type"
    if len({one.types for one in votes if one.types}) > 1:
        return "dtype"
    if len({one.sizes for one in votes}) == 1:
        return ""
    strict = next(iter(votes)).op not in ("broadcast",) and "gather" not in next(iter(votes)).op
    return "shape" if strict or _is_open(group, seq) else ""


def _is_open(group: Group, seq: int) -> bool:
    """Somebody has not finished it, or it is the last that somebody did: with Gloo, a failure looks finished."""
    parts = [part for part in group.parts.values() if seq in part.calls]
    return any(seq in part.open for part in parts) or any(part.last == seq for part in parts)


def _comes_near(group: Group, seq: int, votes: Mapping[Signature, list[int]]) -> bool:
    """What one side calls here, another calls soon after: it was left out, put in or swapped."""
    sides = [group.parts[ranks[0]] for ranks in votes.values()]
    for one, other in [*pairwise(sides), *pairwise(sides[::-1])]:
        here = one.signatures[one.calls[seq]]
        near = (other.calls.get(at) for at in range(seq + 1, seq + _NEAR))
        if any(number is not None and other.signatures[number] == here for number in near):
            return True
    return False


def _differing(
    groups: Sequence[Group], group: Group, seq: int, kind: str, votes: Mapping[Signature, list[int]]
) -> Difference:
    usual, confidence = _usual(groups, group, seq, votes)
    odd = sorted(rank for one, ranks in votes.items() if one != usual for rank in ranks) if usual else []
    most = votes[usual] if usual else max(votes.values(), key=len)
    others = odd or sorted(rank for ranks in votes.values() if ranks is not most for rank in ranks)
    one, other = _call(group, others[0], seq), _call(group, most[0], seq)
    shown = [*others[:2], *most[:2]]
    apart = one.site != other.site or len(one.ins.split(",")) != len(other.ins.split(","))
    return Difference(
        elsewhere=apart or _comes_near(group, seq, votes),
        shard=one.is_shard and other.is_shard,
        kind=kind,
        group=group.told,
        seq=seq,
        ranks=tuple(odd),
        waiting=tuple(sorted(most)) if odd else (),
        op=other.op,
        odd=one.told,
        usual=other.told,
        odd_site=one.site,
        usual_site=other.site,
        confidence=confidence,
        events=tuple(_shown(group, rank, seq) for rank in shown),
    )


def _usual(
    groups: Sequence[Group], group: Group, seq: int, votes: Mapping[Signature, list[int]]
) -> tuple[Signature | None, float]:
    """What most called; of equals, what groups of the same kind did; else what followed when the same came before."""
    ordered = sorted(votes.items(), key=lambda item: -len(item[1]))
    if len(ordered[0][1]) > len(ordered[1][1]):
        return ordered[0][0], 0.95 if len(ordered[0][1]) > sum(map(len, votes.values())) / 2 else 0.75
    elsewhere = called_by_sisters(groups, group, seq)
    if len(elsewhere) == 1 and votes.keys() & elsewhere:
        return next(iter(elsewhere)), 0.85
    for _, ranks in ordered:
        expected = _expected(group.parts[ranks[0]], seq)
        if expected in votes:
            others = [some[0] for one, some in votes.items() if one != expected]
            return (None, 0.8) if any(_evaluates_first(group.parts[rank], seq) for rank in others) else (expected, 0.75)
    return None, 0.8


def _evaluates_first(part: Part, seq: int) -> bool:
    """What comes once an epoch has not come before: steps of training do not tell whether it should have come now."""
    site = (part.call(seq) or _NOTHING).site
    known = {call.site for at, number in part.calls.items() if at < seq for call in part.table[number]}
    return site not in known and any(map(_EVALUATES.search, site.split(CALLED_BY)))


def _expected(part: Part, seq: int) -> Signature | None:
    """What came next when the calls before were the same."""
    before = [part.signatures[part.calls[at]] for at in sorted(part.calls) if at < seq]
    for length in _CONTEXTS:
        if len(before) <= length:
            continue
        context = before[-length:]
        for start in range(len(before) - length - 1, -1, -1):
            if before[start : start + length] == context:
                return before[start + length]
    return None


def _root_differs(group: Group, classes: Sequence[tuple[Part, list[int]]]) -> Difference | None:
    """Of a gather or scatter exactly one rank has the whole; who it was before tells which of two is wrong."""
    some = [part for part, _ in classes if any(_is_rooted(part, number) for number in range(len(part.table)))]
    rooted = sorted({seq for part in some for seq, number in part.calls.items() if _is_rooted(part, number)})
    before: int | None = None
    for seq in rooted:
        calls = {rank: part.call(seq) for rank, part in group.parts.items()}
        roots = sorted(rank for rank, call in calls.items() if call and call.has_root_side)
        if any(call is None or call.has_root_side is None for call in calls.values()):
            continue
        if len(roots) == 1:
            before = roots[0]
        elif (len(roots) > 1 or len(calls) == len(group.members)) and len(roots) < len(calls) and _is_open(group, seq):
            return _two_roots(group, seq, roots, before)
    return None


def _exchanged_unlike(group: Group) -> Iterator[Difference]:
    """All stand in an exchange in which more or less goes out than is awaited: who alone came there from another line
    has reckoned with other numbers."""
    seq = min((part.open[0] for part in group.parts.values() if part.open), default=-1)
    calls = {rank: call for rank, part in group.parts.items() if seq in part.open and (call := part.call(seq))}
    sums = [both for call in calls.values() if (both := call.exchanged)]
    if len(sums) < len(group.members) or len(sums) < 2 or sum(out for out, _ in sums) == sum(into for _, into in sums):
        return
    usual, most = Counter(call.site for call in calls.values()).most_common(1)[0]
    odd = [rank for rank, call in calls.items() if call.site != usual] if most == len(calls) - 1 > 1 else []
    rest = sorted(calls.keys() - {*odd})
    one, other = calls[(odd or rest)[0]], calls[rest[0]]
    yield Difference(
        kind="shape",
        group=group.told,
        seq=seq,
        ranks=tuple(odd),
        waiting=tuple(rest) if odd else (),
        op=other.op,
        odd=_into(one),
        usual=_into(other),
        odd_site=one.site,
        usual_site=other.site,
        confidence=0.85,
        events=tuple(_shown(group, rank, seq) for rank in [*odd, *rest[:2]]),
        elsewhere=bool(odd),
    )


def _into(call: Call) -> str:
    return f"{call.told} into [{call.outs}]"


def _is_rooted(part: Part, number: int) -> bool:
    return part.table[number][0].has_root_side is not None


def _two_roots(group: Group, seq: int, roots: Sequence[int], before: int | None) -> Difference:
    if before is None and len(roots) == 2:  # the first member is the root where nobody asks for another
        before = next((rank for rank in roots if rank == min(group.members)), None)
    odd = ([rank for rank in roots if rank != before] if before in roots else []) if roots else [before]
    accused = tuple(rank for rank in odd if rank is not None and len(odd) == 1)
    rest = [rank for rank in group.parts if rank not in (accused or roots)]
    one, other = _call(group, (accused or roots or rest)[0], seq), _call(group, rest[0], seq)
    return Difference(
        kind="root",
        group=group.told,
        seq=seq,
        ranks=accused,
        waiting=tuple(sorted(rest)) if accused else (),
        op=one.op,
        odd=f"{one.op} to itself" if roots else f"{one.op} to another rank",
        usual=f"{one.op} to rank {before}" if before is not None else f"{one.op} to another rank",
        odd_site=one.site,
        usual_site=other.site,
        confidence=0.85,
        events=tuple(_shown(group, rank, seq) for rank in [*(accused or roots)[:2], *rest[:2]]),
    )


# -- sends and receives --------------------------------------------------------------------------------------------


def _sizes_of_peers(found: Waits) -> Iterator[Difference]:
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


# -- who is waited for ---------------------------------------------------------------------------------------------


def _of_one_moment(found: Waits) -> Iterator[Difference]:
    """Nobody, where the records show the job at different moments: then it moves. A few that are older than all others
    were written before it stopped, if it has."""
    older = frozenset(rank for group in found.groups for rank in _older(group))
    if older:
        ranks = {rank for group in found.groups for rank in group.parts}
        if len(older) * _MANY > len(ranks) - len(older):
            return
        found = waits(found.groups, older)
    for one in _held_up(found):
        yield replace(one, doubtful=bool(older) or _goes_on(found, one))


def _goes_on(found: Waits, one: Difference) -> bool:
    """Somebody whom this is about has just finished something; or it is known to have lasted for a moment only."""
    concerned = {*one.ranks, *one.waiting}
    if any(group.parts[rank].moves for group in found.groups for rank in concerned.intersection(group.parts)):
        return True
    begun = [_part_at(found, rank) for rank in concerned.intersection(found.at) if _has_begun(found, rank)]
    short = all(0 < part.age_ms < min(part.timeout_ms or _SHORT_MS, _SHORT_MS) for part in begun)
    return one.kind in _LATE and not one.first and bool(begun) and short


def _has_begun(found: Waits, rank: int) -> bool:
    """The recorder finds out that a call has begun when it is written, so that it tells for how long it waits."""
    return found.at[rank][1] in _part_at(found, rank).started


def _held_up(found: Waits) -> Iterator[Difference]:
    """Ranks that never came; else ranks that wait for each other; else those that nobody has a record of; else those
    whose GPU has not come."""
    if turned := _turned(found) or _crossed(found):
        yield turned
    elif idle := found.idle:
        yield _missing(found, idle)
    elif ring := found.ring:
        yield _between_peers(found, ring) or _in_a_ring(found, ring)
    elif unstarted := next(_unstarted(found), None):
        yield unstarted
    elif unheard := frozenset(rank for some in found.unheard.values() for rank in some):
        hidden = any(_may_differ(found, op) for op in found.at.values())
        alike = len({_part_at(found, rank).usual for rank in found.at}) == 1
        if len(unheard) * _FEW <= len(found.at) and alike and not hidden:
            yield _from(found, "unheard", unheard, frozenset(found.at), sure=0.7)


def _older(group: Group) -> Iterator[int]:
    """Somebody has finished what needs all members, and these have not even called it: their record is older.
    Gloo calls finished what has failed. Of records that only have what is not finished, what the group counts tells."""
    entered = min((part.last for part in group.parts.values()), default=0)
    ended = max(
        (
            seq
            for part in group.parts.values()
            if part.event.fields.get("backend") != "gloo"
            for seq in part.calls.keys() - {*part.open}
            if seq > entered and part.signatures[part.calls[seq]].op.lstrip("_").startswith(_OF_ALL)
        ),
        default=entered,
    )
    counted = max((part.completed for part in group.parts.values() if len(part.calls) == len(part.open)), default=-1)
    yield from (rank for rank, part in group.parts.items() if part.last < max(ended, counted))


def _unstarted(found: Waits) -> Iterator[Difference]:
    """All have called it and wait for it, and so have called nothing since that others have not; but on some ranks the
    GPU is still busy with what came before it, on the others it has begun."""
    ops = {op for rank, op in found.at.items() if not found.behind.get(rank)}
    for number, seq in sorted(ops):
        group = found.groups[number]
        parts = [group.parts[rank] for rank in found.standing((number, seq))] if seq >= 0 else []
        late = frozenset(part.rank for part in parts if seq not in part.started)
        stopped = len({part.last for part in parts}) == 1
        if stopped and all(part.timed for part in parts) and 0 < len(late) <= len(parts) - len(late):
            waiting = found.held_by(late) | frozenset(part.rank for part in parts) - late
            sure = 0.85 if _too_long(parts) else 0.6
            yield _from(found, "unstarted", late, waiting, sure=sure, op=(number, seq))
            return


def _stalled(found: Waits) -> Iterator[Difference]:
    """All have called the same, and none is done. That alone is what any moment of a healthy job looks like. If it is
    a group for which most others wait, it is between its members that data do not arrive."""
    for number, seq in found.ends:
        group = found.groups[number]
        parts = [group.parts[rank] for rank in found.standing((number, seq))]
        if seq >= 0 and len(parts) == len(group.members) > 1 and not _may_differ(found, (number, seq)):
            members = frozenset(group.members)
            between = members if len(members) <= len(found.held_by(members)) else frozenset[int]()
            one = _from(found, "stalled", between, frozenset(found.at) - between, sure=0.8, op=(number, seq))
            yield replace(one, age_ms=_too_long(parts))
            return


def _too_long(parts: Sequence[Part]) -> int:
    limits = [part.timeout_ms for part in parts if part.timeout_ms > 0]
    age = max(part.age_ms for part in parts)
    return age if age >= min([_LONG_MS, *limits]) else 0


def _may_differ(found: Waits, op: Op) -> bool:
    """A gather or scatter may also hang because ranks disagree on its root, a send because its other half is another:
    which one lost record can hide."""
    if op[1] < 0:
        return True
    call = _call(found.groups[op[0]], min(found.standing(op)), op[1])
    return call.has_root_side is not None


def _turned(found: Waits) -> Difference | None:
    """Of ranks whose halves do not meet, one alone posts what it has never finished from that line, which has always
    served other peers."""
    apart = {*found.ring, *found.unanswered, *(peer for _, peer in found.unanswered.values())}
    new = {rank: call for rank in sorted(apart) if (call := _new_from_there(found, rank)) is not None}
    if len(new) != 1:
        return None
    ((odd, call),) = new.items()
    rank = next((rank for rank, (_, peer) in sorted(found.unanswered.items()) if peer == odd), odd)
    one = _from(found, "p2p", frozenset([odd]), found.held_by(frozenset([odd])), sure=0.85, op=found.at[rank])
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


def _crossed(found: Waits) -> Difference | None:
    """A rank whose own half nobody answers, and that does not answer another's: both ends of the mistake are its."""
    wrong = {peer for _, peer in found.unanswered.values() if peer in found.unanswered}
    if len(wrong) != 1:
        return None
    odd = wrong.pop()
    mine, _ = found.unanswered[odd]
    rank, (theirs, _) = next((rank, said) for rank, said in found.unanswered.items() if said[1] == odd)
    one = _from(found, "p2p", frozenset([odd]), found.held_by(frozenset([odd])), sure=0.85, op=found.at[rank])
    return replace(one, odd=mine.op, odd_site=mine.site, usual=theirs.op, usual_site=theirs.site)


def _between_peers(found: Waits, ring: frozenset[int]) -> Difference | None:
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
    if not blamed and len(ring) == 2 < len(found.at) and len({_at(found, rank).op.split(" ")[0] for rank in ring}) == 1:
        blamed = ring  # two that both send, or both receive, first
    op = next((found.at[rank] for rank, (_, peer) in sorted(found.unanswered.items()) if peer == odd), None)
    one = _from(found, "p2p", blamed, found.held_by(blamed or ring), sure=0.8 if blamed else 0.6, op=op)
    call = _at(found, odd if blamed and odd in blamed else min(ring))
    return replace(one, odd=call.told, odd_site=call.site, unposted=True, fewer=shorter)


def _strayed(found: Waits, rank: int) -> Difference:
    """Whether it has one more to send or get than all others, or does another thing."""
    call, part = _at(found, rank), _part_at(found, rank)
    number, _ = part.sent[-1 - found.at[rank][1]]
    one = _from(found, "p2p", frozenset([rank]), found.held_by(frozenset([rank])), sure=0.85, op=found.at[rank])
    more = (number - 1, call.op) in part.sent.values()
    return replace(one, odd=call.told, odd_site=call.site, unposted=True, fewer=more)


def _passes_on(found: Waits, rank: int) -> bool:
    """It waits where one that asks it waits, and has passed on to that one all that it has got: the next micro-batch is
    what both have not got."""
    part = _part_at(found, rank)
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
    part = _part_at(found, rank)
    others = [count for told, count in part.posted.items() if told != call.op]
    if part.posted.get(call.op) == 1 and len(others) > 1 and min(others) > 1:
        one = _from(found, "p2p", frozenset([rank]), found.held_by(frozenset([rank])), sure=0.8, op=found.at[rank])
        return replace(one, odd=call.told, odd_site=call.site)
    if found.at[peer][1] < 0:
        return None
    one = _from(found, "p2p", frozenset([peer]), found.held_by(frozenset([peer])), sure=0.75, op=found.at[rank])
    theirs = _at(found, peer)
    return replace(one, odd=theirs.told, odd_site=theirs.site)


def _at(found: Waits, rank: int) -> Call:
    number, seq = found.at[rank]
    return _call(found.groups[number], rank, seq)


def _missing(found: Waits, idle: frozenset[int]) -> Difference:
    held = found.held_by(idle)
    unanswered = [rank for rank, (_, peer) in found.unanswered.items() if peer in idle]
    direct = Counter(found.at[rank] for rank in held if idle.intersection(found.behind.get(rank, ())))
    op = min(direct, key=lambda one: (-direct[one], one[1] < 0, one))
    goes_on = len(idle) == len(held) and op[1] >= 0 and _as_before(found, op)
    if len(idle) < len(held) or goes_on or len(idle) == len(held) == 1:
        kind = "p2p" if unanswered and op[1] < 0 and len(held) == 1 else "missing"
        one = _from(found, kind, idle, held, sure=0.9 if len(idle) < len(held) else 0.8, op=op)
        one = replace(one, unposted=kind == "p2p")
        return replace(one, fewer=goes_on and len(idle) > 1 and _stopped_together(found, idle, op))
    if op[1] >= 0 and len(held) * _ALONE <= len(idle):
        group = found.groups[op[0]]
        stood = {group.parts[rank].last if rank in group.parts else -1 for rank in idle.intersection(group.members)}
        if len(stood) == 1:
            site = _call(group, min(found.standing(op)), op[1]).site
            known = any(call.site == site for rank in idle if rank in group.parts for call in _calls(group.parts[rank]))
            return _from(found, "ahead", held, idle, sure=0.65 if known or not site else 0.85, op=op)
    return _from(found, "missing", frozenset(), held, sure=0.6, op=op)


def _as_before(found: Waits, op: Op) -> bool:
    """Who waits has called what came next in the steps before: they go on, and the others have stopped."""
    part = found.groups[op[0]].parts[min(found.standing(op))]
    return _expected(part, op[1]) == part.signatures[part.calls[op[1]]]


def _stopped_together(found: Waits, idle: frozenset[int], op: Op) -> bool:
    parts = found.groups[op[0]].parts
    return all(rank in parts and parts[rank].last == op[1] - 1 for rank in idle)


def _calls(part: Part) -> Iterator[Call]:
    for together in part.table:
        yield from together


def _in_a_ring(found: Waits, ring: frozenset[int]) -> Difference:
    """Each waits in a group in which another is missing: who came there in another order than in all steps before went
    the wrong way; else who alone stands elsewhere than most. Of several who do, only one began it."""
    stand = Counter(found.at[rank] for rank in ring)
    (usual, most), *rest = stand.most_common()
    odd = frozenset(rank for rank in ring if found.at[rank] != usual)
    strayed = frozenset(rank for rank in ring if not _part_at(found, rank).usual)
    revised = _of_another_revision(found.groups)
    clear = most > len(ring) - most and bool(rest)
    blamed = odd if clear and (len(odd) == 1 or odd == revised) else frozenset[int]()
    if any(found.at[rank][1] < 0 for rank in ring):
        blamed = frozenset()
    elif not blamed and 0 < len(strayed) < len(ring):
        usual, blamed = next(found.at[rank] for rank in sorted(ring - strayed)), strayed
    one = _from(found, "groups", blamed, ring - blamed, sure=0.85 if clear or blamed else 0.7, op=usual)
    first = min(blamed or odd, default=min(ring))
    call = _at(found, first)
    return replace(one, odd=f"{call.told} of {found.groups[found.at[first][0]].told}", odd_site=call.site)


def _part_at(found: Waits, rank: int) -> Part:
    return found.groups[found.at[rank][0]].parts[rank]


def _from(
    found: Waits, kind: str, ranks: frozenset[int], waiting: frozenset[int], *, sure: float, op: Op | None = None
) -> Difference:
    """With where the waiting stand, and the last that those at fault did in that group, or anywhere."""
    number, seq = op or Counter(found.at.values()).most_common(1)[0][0]
    group = found.groups[number]
    stands = min((rank for rank in found.standing((number, seq))), default=min(waiting, default=0))
    call = _call(group, stands, seq)
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
        events=tuple(_shown(group, rank, seq) for rank in shown if rank in group.parts),
        first=all(_has_finished_nothing(part) for one in found.groups for part in one.parts.values()),
    )


def _has_finished_nothing(part: Part) -> bool:
    return len(part.calls) == len(part.open) and not part.known_peers and not part.wrapped and part.completed < 1


def _last_call(found: Waits, rank: int) -> Call | None:
    theirs = [group.parts[rank] for group in found.groups if rank in group.parts and group.parts[rank].calls]
    part = max(theirs, key=lambda one: one.last_at, default=None)
    return part.call(max(part.calls)) if part else None


# -- how it is shown -----------------------------------------------------------------------------------------------

_NOTHING = Call("nothing", "", "", "", "", "")


def _call(group: Group, rank: int, seq: int) -> Call:
    part = group.parts.get(rank)
    if part is None:
        return _NOTHING
    if seq < 0:
        return next((call for at, _, call in part.peers if at == -1 - seq), _NOTHING)
    return part.call(seq) or _NOTHING


def _place(group: Group, seq: int) -> int:
    """How early in the record: of the ranks that have it, the least number of calls before the end."""
    return min((part.last_at - (part.last - seq) for part in group.parts.values() if seq in part.calls), default=0)


def _shown(group: Group, rank: int, seq: int) -> tuple[str, Event]:
    part = group.parts[rank]
    call = _call(group, rank, seq)
    at = f" at {call.site}" if call.site else ""
    if call is not _NOTHING:
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

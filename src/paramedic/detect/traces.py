"""Where the ranks' recorded collectives differ, and who is to blame.

By majority, and backwards along who waits for whom. Nobody is accused where neither decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from paramedic.detect import halves, mismatches
from paramedic.detect.calls import Call, Group, Part, groups
from paramedic.detect.difference import Difference, call_at, call_of, of_waits, part_at
from paramedic.detect.mismatches import to_come
from paramedic.detect.once import once
from paramedic.detect.revisions import of_another_revision
from paramedic.detect.waits import Op, Waits, waits
from paramedic.model import Run

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
_OF_ALL = ("all", "reduce_scatter")
"""Calls that end nowhere before everybody has come; the root of others may be done alone."""


@once
def differences(run: Run) -> list[Difference]:
    """The first thing that went wrong, and what else differs that did not follow from it."""
    waiting = _waiting(run)
    unlike = [one for group in waiting.groups for one in mismatches.unlike(waiting.groups, group)]
    found = [one for _, one in sorted(unlike, key=lambda one: one[0])[:1]]
    found = found or [one for group in waiting.groups for one in mismatches.exchanged_unlike(group)][:1]
    found = found or [*halves.unequal_sizes(waiting)] or [*_of_one_moment(waiting)]
    other = of_another_revision(waiting.groups) if found else frozenset[int]()
    return [replace(one, revised=bool(one.ranks) and other.issuperset(one.ranks)) for one in found]


def standstill(run: Run) -> Difference | None:
    """The call in which all stand, if nothing differs."""
    return next(_stalled(_waiting(run)), None) if not differences(run) else None


@once
def _waiting(run: Run) -> Waits:
    return waits(groups(run))


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


def _goes_on(found: Waits, one: Difference) -> bool:
    """Somebody whom this is about has just finished something; or it is known to have lasted for a moment only."""
    concerned = {*one.ranks, *one.waiting}
    if any(group.parts[rank].moves for group in found.groups for rank in concerned.intersection(group.parts)):
        return True
    begun = [part_at(found, rank) for rank in concerned.intersection(found.at) if _has_begun(found, rank)]
    short = all(0 < part.age_ms < min(part.timeout_ms or _SHORT_MS, _SHORT_MS) for part in begun)
    return one.kind in _LATE and not one.first and bool(begun) and short


def _has_begun(found: Waits, rank: int) -> bool:
    """The recorder finds out that a call has begun when it is written, so that it tells for how long it waits."""
    return found.at[rank][1] in part_at(found, rank).started


def _held_up(found: Waits) -> Iterator[Difference]:
    """Ranks that never came; else ranks that wait for each other; else those that nobody has a record of; else those
    whose GPU has not come."""
    if turned := halves.turned(found) or halves.crossed(found):
        yield turned
    elif idle := found.idle:
        yield _missing(found, idle)
    elif ring := found.ring:
        yield halves.between_peers(found, ring) or _in_a_ring(found, ring)
    elif unstarted := next(_unstarted(found), None):
        yield unstarted
    elif unheard := frozenset(rank for some in found.unheard.values() for rank in some):
        hidden = any(_may_differ(found, op) for op in found.at.values())
        alike = len({part_at(found, rank).usual for rank in found.at}) == 1
        if len(unheard) * _FEW <= len(found.at) and alike and not hidden:
            yield of_waits(found, "unheard", unheard, frozenset(found.at), sure=0.7)


def _missing(found: Waits, idle: frozenset[int]) -> Difference:
    held = found.held_by(idle)
    unanswered = [rank for rank, (_, peer) in found.unanswered.items() if peer in idle]
    direct = Counter(found.at[rank] for rank in held if idle.intersection(found.behind.get(rank, ())))
    op = min(direct, key=lambda one: (-direct[one], one[1] < 0, one))
    goes_on = len(idle) == len(held) and op[1] >= 0 and _as_before(found, op)
    if len(idle) < len(held) or goes_on or len(idle) == len(held) == 1:
        kind = "p2p" if unanswered and op[1] < 0 and len(held) == 1 else "missing"
        one = of_waits(found, kind, idle, held, sure=0.9 if len(idle) < len(held) else 0.8, op=op)
        one = replace(one, unposted=kind == "p2p")
        return replace(one, fewer=goes_on and len(idle) > 1 and _stopped_together(found, idle, op))
    if op[1] >= 0 and len(held) * _ALONE <= len(idle):
        group = found.groups[op[0]]
        stood = {group.parts[rank].last if rank in group.parts else -1 for rank in idle.intersection(group.members)}
        if len(stood) == 1:
            site = call_of(group, min(found.standing(op)), op[1]).site
            known = any(call.site == site for rank in idle if rank in group.parts for call in _calls(group.parts[rank]))
            return of_waits(found, "ahead", held, idle, sure=0.65 if known or not site else 0.85, op=op)
    return of_waits(found, "missing", frozenset(), held, sure=0.6, op=op)


def _as_before(found: Waits, op: Op) -> bool:
    """Who waits has called what came next in the steps before: they go on, and the others have stopped."""
    part = found.groups[op[0]].parts[min(found.standing(op))]
    return to_come(part, op[1]) == part.signatures[part.calls[op[1]]]


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
    strayed = frozenset(rank for rank in ring if not part_at(found, rank).usual)
    revised = of_another_revision(found.groups)
    clear = most > len(ring) - most and bool(rest)
    blamed = odd if clear and (len(odd) == 1 or odd == revised) else frozenset[int]()
    if any(found.at[rank][1] < 0 for rank in ring):
        blamed = frozenset()
    elif not blamed and 0 < len(strayed) < len(ring):
        usual, blamed = next(found.at[rank] for rank in sorted(ring - strayed)), strayed
    one = of_waits(found, "groups", blamed, ring - blamed, sure=0.85 if clear or blamed else 0.7, op=usual)
    first = min(blamed or odd, default=min(ring))
    call = call_at(found, first)
    return replace(one, odd=f"{call.told} of {found.groups[found.at[first][0]].told}", odd_site=call.site)


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
            yield of_waits(found, "unstarted", late, waiting, sure=sure, op=(number, seq))
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
            one = of_waits(found, "stalled", between, frozenset(found.at) - between, sure=0.8, op=(number, seq))
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
    call = call_of(found.groups[op[0]], min(found.standing(op)), op[1])
    return call.has_root_side is not None

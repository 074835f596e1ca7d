"""Calls that differ at one sequence number of a group: which of them is wrong, by majority and by what came before."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from paramedic.detect.calls import Call, Group, Part, Signature
from paramedic.detect.difference import CALLED_BY, NO_CALL, Difference, call_of, shows
from paramedic.detect.sisters import called_by_sisters
from paramedic.regex import regex

_CONTEXTS = (12, 6, 3, 1)
"""So many calls before the difference are looked for earlier: what followed there is what was to come here."""
_NEAR = 16
_EVALUATES = regex(r" in \w*(?:valid|eval)\w*$", re.I)


def unlike(groups: Sequence[Group], group: Group) -> Iterator[tuple[int, Difference]]:
    """(how early, the first difference of the group)."""
    classes = same_calls(group)
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


def same_calls(group: Group) -> list[tuple[Part, list[int]]]:
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
    one, other = call_of(group, others[0], seq), call_of(group, most[0], seq)
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
        events=tuple(shows(group, rank, seq) for rank in shown),
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
        expected = to_come(group.parts[ranks[0]], seq)
        if expected in votes:
            others = [some[0] for one, some in votes.items() if one != expected]
            return (None, 0.8) if any(_evaluates_first(group.parts[rank], seq) for rank in others) else (expected, 0.75)
    return None, 0.8


def _evaluates_first(part: Part, seq: int) -> bool:
    """What comes once an epoch has not come before: steps of training do not tell whether it should have come now."""
    site = (part.call(seq) or NO_CALL).site
    known = {call.site for at, number in part.calls.items() if at < seq for call in part.table[number]}
    return site not in known and any(map(_EVALUATES.search, site.split(CALLED_BY)))


def to_come(part: Part, seq: int) -> Signature | None:
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


def _is_rooted(part: Part, number: int) -> bool:
    return part.table[number][0].has_root_side is not None


def _two_roots(group: Group, seq: int, roots: Sequence[int], before: int | None) -> Difference:
    if before is None and len(roots) == 2:  # the first member is the root where nobody asks for another
        before = next((rank for rank in roots if rank == min(group.members)), None)
    odd = ([rank for rank in roots if rank != before] if before in roots else []) if roots else [before]
    accused = tuple(rank for rank in odd if rank is not None and len(odd) == 1)
    rest = [rank for rank in group.parts if rank not in (accused or roots)]
    one, other = call_of(group, (accused or roots or rest)[0], seq), call_of(group, rest[0], seq)
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
        events=tuple(shows(group, rank, seq) for rank in [*(accused or roots)[:2], *rest[:2]]),
    )


def _place(group: Group, seq: int) -> int:
    """How early in the record: of the ranks that have it, the least number of calls before the end."""
    return min((part.last_at - (part.last - seq) for part in group.parts.values() if seq in part.calls), default=0)


def exchanged_unlike(group: Group) -> Iterator[Difference]:
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
        events=tuple(shows(group, rank, seq) for rank in [*odd, *rest[:2]]),
        elsewhere=bool(odd),
    )


def _into(call: Call) -> str:
    return f"{call.told} into [{call.outs}]"

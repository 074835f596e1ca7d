"""Who failed first: of all that was found, what cannot have followed from anything else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from paramedic.detect.numerics import diverged, on_one_gpu
from paramedic.detect.places import at_ranks
from paramedic.detect.recovery import BY_SCHEDULER, SCHEDULER, lost_before
from paramedic.detect.situation import situation
from paramedic.detect.where import places
from paramedic.echoes import followed
from paramedic.knowledge import Knowledge
from paramedic.knowledge.clues import OUTRIGHT
from paramedic.model import VERDICT_AT, Evidence, Finding, Run
from paramedic.named import with_ranks
from paramedic.regex import regex

MAX_EVIDENCE = 6
_ZONE_STEP_NS = 25 * 60 * 1_000_000_000
"""Clocks that are further apart than this may be in different zones: then they decide nothing."""
_POSITIONS = frozenset({"trace", "stack", "process", "watch", "calls"})
"""Events that tell where a rank stands, and not why."""
BESIDE = 30.0
"""How much likelier a cause is that a machine, or a scheduler, complains of meanwhile."""
_ORDER = {"never": 0, "possible": 1, "always": 2}


def first_failure(run: Run, errors: Sequence[Finding], knowledge: Knowledge) -> tuple[list[Finding], list[Finding]]:
    """([the first failure, then rivals that cannot be told from it], the echoes)."""
    if not errors:
        return [], []
    errors = followed(run, errors)
    merged = sorted(one_each(_roots(_telling(errors))), key=_preference)
    first = _of_the_job(_earliest(merged), merged, knowledge)
    named = set(first.ranks)
    rest = [f for f in errors if f.rule != first.rule or not named.issuperset(f.ranks)]
    first = with_ranks(run, replace(first, weights=_named_causes(first, errors, knowledge)), errors, knowledge)
    if first.symptom in _WAITED and first.ranks:
        first = replace(first, fields={**situation(run, first.ranks), **first.fields})
        if "fewer" in first.fields:
            first = replace(first, weights={**first.weights, "uneven-work-across-ranks": _FEWER})
    if first.symptom == "numerical-instability" and first.evidence[0].event.kind in ("line", "traceback"):
        first = on_one_gpu(replace(first, weights={**diverged(run, first), **first.weights}))
    rivals = [f for f in merged if f.rule != first.rule and f.consequence == "never" and first.consequence == "never"]
    if rivals:
        first = replace(first, confidence=first.confidence * 0.9)
    echoes = [f for f in rest if not any(f.rule == r.rule for r in rivals)]
    return [first, *rivals], echoes


def with_those_of_its_host(run: Run, first: Finding, errors: Sequence[Finding]) -> Finding:
    """Memory is its host's: whoever was killed for it there in the attempt before had the same fault."""
    if first.symptom != "host-out-of-memory" or not first.ranks:
        return first
    same = [f for f in errors if f.rule == first.rule and f.attempt == first.attempt - 1 and f.ranks]
    ranks = {*first.ranks, *(rank for f in same for rank in f.ranks)}
    beside = any(ranks <= there for there in places(run).ranks_on.values())
    return replace(first, ranks=tuple(sorted(ranks))) if beside else first


def without_the_lost(run: Run, first: Finding, errors: Sequence[Finding]) -> Finding:
    """A launcher that gives up for want of room misses those whom it lost in the attempt before: whose host was gone,
    or who had failed for a reason of their own."""
    if first.symptom != "failed-recovery" or first.ranks or _WANT_OF_ROOM.search(first.evidence[0].event.text) is None:
        return first
    before = [f for f in errors if f.attempt == first.attempt - 1 and f.consequence == "never"]
    gone = lost_before(run, first.attempt) or {rank for f in before for rank in f.ranks}
    if any(f.rule in BY_SCHEDULER for f in before):
        first = replace(first, weights={**first.weights, SCHEDULER: BESIDE})
    return at_ranks(first, gone) if gone and gone < run.expected_ranks else first


_WANT_OF_ROOM = regex(r"failed to activate new hosts|minimum number of slots")
_WAITED, _FEWER = ("collective-hang", "collective-desync"), 20.0


def _named_causes(first: Finding, errors: Sequence[Finding], knowledge: Knowledge) -> Mapping[str, float]:
    """Its own, and what somebody else's message of the same attempt names outright: the peers' disk is its disk, where
    a disk can bring this about."""
    can = {*knowledge.taxonomy.symptoms[first.symptom].causes, *(cause.id for cause in first.causes)}
    others = [f.weights for f in errors if f.attempt == first.attempt and f.consequence != "always"]
    named = {c: factor for weights in others for c, factor in weights.items() if factor >= OUTRIGHT and c in can}
    return {**named, **first.weights}


def _of_the_job(first: Finding, merged: Sequence[Finding], knowledge: Knowledge) -> Finding:
    """Of two words for one failure, the one that names who did it; else the surer one that is about the job: a rank
    then only met the job's mistake."""
    same = [f for f in merged if f.symptom == first.symptom and f.consequence == "never"]
    met = first.symptom == "numerical-instability"  # by whoever looked, one step after the rank whose number it was
    if "accused" not in first.fields and (met or not knowledge.rules[first.rule].blames_reporter):
        first = next((f for f in same if "accused" in f.fields), first)
    return next(
        (
            f
            for f in same
            if f.confidence > first.confidence
            and not knowledge.rules[f.rule].blames_reporter
            and "accused" not in first.fields
        ),
        first,
    )


def _telling(errors: Sequence[Finding]) -> Sequence[Finding]:
    """Without what says too little for a verdict, where somebody's words are enough for one: ends beside words, and
    failures beside a sure one."""
    sure = [f for f in errors if f.confidence >= VERDICT_AT]
    spoken = any(f.consequence != "always" and f.evidence[0].event.kind != "exit" for f in sure)
    failed = any(f.consequence == "never" for f in sure)
    return [
        f
        for f in errors
        if f.confidence >= VERDICT_AT
        or not ((spoken and f.evidence[0].event.kind == "exit") or (failed and f.consequence == "never"))
    ]


def _roots(errors: Sequence[Finding]) -> list[Finding]:
    """Each rank's own first failure; of all ranks, only those that are least likely to be an echo."""
    by_rank: dict[int | None, list[Finding]] = defaultdict(list)
    for one in errors:
        for rank in one.ranks or (None,):
            by_rank[rank].append(one)
    if len(by_rank) > 1 and None in by_rank:
        ranked = {f.rule for rank, found in by_rank.items() if rank is not None for f in found}
        by_rank[None] = [f for f in by_rank[None] if f.rule not in ranked]
    own = [
        min(found, key=lambda f: (*_preference(f), "accused" not in f.fields)) for found in by_rank.values() if found
    ]
    least = min(_preference(f)[:2] for f in own)
    return [f for f in own if _preference(f)[:2] == least]


def _preference(one: Finding) -> tuple[int, bool, bool, float]:
    """Within a rank: what cannot be an echo, then what was said rather than how it exited, then an error rather than
    where the rank stands because of it (unless that is what the error is about), then the surest."""
    kind = one.evidence[0].event.kind
    position = kind in _POSITIONS and "confirmed" not in one.fields
    return _ORDER[one.consequence], kind == "exit", position, -one.confidence


def one_each(found: Iterable[Finding]) -> list[Finding]:
    """One finding for each rule and attempt, with all its ranks and the first evidence of each."""
    groups: dict[tuple[str, str, int], list[Finding]] = defaultdict(list)
    for one in found:
        groups[one.rule, one.symptom, one.attempt].append(one)
    return [_merge(group) for group in groups.values()]


def _merge(group: Sequence[Finding]) -> Finding:
    ordered = sorted(group, key=lambda f: (f.evidence[0].event.rank is None, f.evidence[0].event.seq))
    evidence: dict[tuple[str, int], Evidence] = {}
    for one in ordered:
        for item in one.evidence:
            evidence.setdefault((item.event.source, item.event.seq), item)
    named = [one for one in group if "accused" in one.fields]
    ordered = named or ordered
    ranks = tuple(sorted({rank for one in ordered for rank in one.ranks}))
    hosts = tuple(sorted({host for one in group for host in one.hosts}))
    chosen = tuple(evidence.values())[:MAX_EVIDENCE]
    return replace(ordered[0], ranks=ranks, hosts=hosts, evidence=chosen, scope="rank" if ranks else "job")


def _earliest(merged: Sequence[Finding]) -> Finding:
    """Of equals, the one whose clock or place in one file is first; without either, the one we are surest of."""
    if len(merged) == 1:
        return merged[0]
    events = [f.evidence[0].event for f in merged]
    times = sorted(e.utc_ns for e in events if e.utc_ns is not None)
    if len(times) == len(events) and times[1] - times[0] < _ZONE_STEP_NS:
        return min(merged, key=lambda f: f.evidence[0].event.utc_ns or 0)
    if len({e.source for e in events}) == 1:
        return min(merged, key=lambda f: f.evidence[0].event.seq)
    return merged[0]

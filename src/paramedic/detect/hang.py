"""Who is missing: when ranks say that they waited, the one that says nothing, or waited elsewhere, is the suspect."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set

from paramedic.detect.match import on_events, own_frame
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run

_SUBGROUP = re.compile(r"\bPG (?:ID )?[1-9]\d{0,6}\b")
"""A process group that is not the default one: who belongs to it, the message does not say."""


def rank_missing(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that did not wait in the collective in which the others waited until their timeout."""
    for victims in _victims(found, "collective-hang"):
        waiting = {rank for one in victims for rank in one.ranks}
        missing = run.expected_ranks - waiting
        events = [one.evidence[0].event for one in victims]
        if _few(missing, waiting) and not any(_SUBGROUP.search(event.text) for event in events):
            yield _accusation(run, rule, events, missing, waiting)
        elif not missing and (odd := _elsewhere(victims)):
            others = [e for e in events if e.rank not in odd]
            theirs = [e for e in events if e.rank in odd]
            yield on_events(rule, [*theirs, *others][:4], sorted(odd), {"waiting": _listed(waiting - odd)})


def rank_lost(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that said nothing while all others lost the connection to a peer."""
    if any(one.symptom == "collective-hang" for one in found):
        return
    for victims in _victims(found, "communication-runtime-error"):
        lost = {rank for one in victims for rank in one.ranks}
        missing = run.expected_ranks - lost
        if _few(missing, lost):
            yield _accusation(run, rule, [one.evidence[0].event for one in victims], missing, lost)


def _victims(found: Sequence[Finding], symptom: str) -> Iterator[list[Finding]]:
    """By attempt; none where somebody has said what went wrong, or whom he waited for: nobody needs to be suspected."""
    by_attempt: dict[int, list[Finding]] = defaultdict(list)
    for one in found:
        if one.severity == "error":
            by_attempt[one.attempt].append(one)
    for _, errors in sorted(by_attempt.items()):
        if not any(one.consequence == "never" or "accused" in one.fields for one in errors):
            yield [one for one in errors if one.symptom == symptom and one.consequence == "possible"]


def _accusation(run: Run, rule: Rule, events: Sequence[Event], missing: Set[int], waiting: Set[int]) -> Finding:
    """Shows where the missing ranks were, the last that they said if they said anything, and then who waited."""
    lasts = [event for event in run.events if event.kind == "last" and event.rank in missing and event.text]
    return on_events(rule, [*lasts[:2], *events[:4]], sorted(missing), {"waiting": _listed(waiting)})


def _few(missing: Set[int], waiting: Set[int]) -> bool:
    """One of two, or fewer than those that wait: a larger rest was never part of it."""
    return bool(waiting) and (0 < len(missing) < len(waiting) or len(missing) == len(waiting) == 1)


def _elsewhere(victims: Sequence[Finding]) -> set[int]:
    """Ranks that waited in another collective, or whose own code stood at another line, than the clear majority."""
    places: dict[int, str] = {}
    for one in victims:
        event = one.evidence[0].event
        call = " ".join(one.fields[name] for name in ("op", "seq") if name in one.fields) if "seq" in one.fields else ""
        place = call or (own_frame(event) if event.fields.get("frames") else "")
        if event.rank is not None and place:
            places.setdefault(event.rank, place)
    votes = Counter(places.values()).most_common(2)
    if len(votes) < 2 or votes[0][1] <= len(places) / 2:
        return set()
    return {rank for rank, place in places.items() if place != votes[0][0]}


def _listed(ranks: Set[int]) -> str:
    return ", ".join(map(str, sorted(ranks)[:16])) + (" …" if len(ranks) > 16 else "")

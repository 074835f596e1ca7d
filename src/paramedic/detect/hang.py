"""Who is missing: when most ranks say that they waited, the one that says nothing is the suspect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paramedic.detect.match import on_events
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run


def rank_missing(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that did not wait in the collective in which the others waited until their timeout."""
    return _suspects(run, rule, found, [f for f in found if f.symptom == "collective-hang" and not f.fields.get("accused")])


def rank_lost(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that said nothing while all others lost the connection to a peer."""
    if any(f.symptom == "collective-hang" for f in found):
        return iter(())
    return _suspects(run, rule, found, [f for f in found if f.symptom == "communication-runtime-error"])


def _suspects(run: Run, rule: Rule, found: Sequence[Finding], victims: Sequence[Finding]) -> Iterator[Finding]:
    for attempt in sorted({f.attempt for f in victims}):
        if any(f.consequence == "never" and f.severity == "error" and f.attempt == attempt for f in found):
            continue  # somebody has said what went wrong: nobody needs to be suspected
        waiting = {r for f in victims if f.attempt == attempt and f.consequence == "possible" for r in f.ranks}
        missing = _expected(run) - waiting
        if waiting and 0 < len(missing) <= len(waiting):
            events = [f.evidence[0].event for f in victims if f.attempt == attempt][:4]
            fields = {"waiting": ", ".join(map(str, sorted(waiting)))}
            yield on_events(rule, events, sorted(missing), fields)


def _expected(run: Run) -> set[int]:
    return set(range(run.world_size)) if run.world_size and run.world_size <= 1 << 20 else set(run.ranks_seen)

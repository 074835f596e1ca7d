"""What the flight recorders of the ranks show, as findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from paramedic.detect.hang import listed, while_saving
from paramedic.detect.match import on_events
from paramedic.detect.stacks import PLACES, standing
from paramedic.detect.traces import Difference, differences
from paramedic.knowledge import Rule, load_taxonomy
from paramedic.model import Evidence, Finding, Run

_WEIGHTS: Mapping[str, Mapping[str, float]] = {
    "order": {"collective-order-divergence": 6.0},
    "type": {"collective-order-divergence": 6.0},
    "groups": {"collective-order-divergence": 6.0},
    "ahead": {"collective-order-divergence": 2.0},
    "shape": {"uneven-work-across-ranks": 2.0},
}


def missing(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A rank that never came to the collective in which the others wait; not if it says itself what befell it."""
    failed = {rank for one in found if one.severity == "error" and one.consequence == "never" for rank in one.ranks}
    nobody = any(one.severity == "error" and one.consequence == "never" and not one.ranks for one in found)
    for one in _of(run, "missing", "unheard"):
        if not nobody and not failed.intersection(one.ranks or one.waiting):
            yield _with_place(run, _finding(run, rule, one))


def order(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that call another collective than the others at the same point, or the same in another order."""
    for one in _of(run, "order", "type", "groups"):
        yield saving_is_a_hang(run, _finding(run, rule, one))


def sizes(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks whose tensor has another size or type than the others'."""
    yield from (_finding(run, rule, one) for one in _of(run, "shape", "dtype"))


def roots(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that take another rank for the root of a gather or scatter."""
    yield from (_finding(run, rule, one) for one in _of(run, "root"))


def peers(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Sends and receives without their other half."""
    yield from (_finding(run, rule, one) for one in _of(run, "p2p", "p2p-size"))


def ahead(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A rank that waits in a collective to which nobody else has come."""
    yield from (_finding(run, rule, one) for one in _of(run, "ahead"))


def saving_is_a_hang(run: Run, one: Finding) -> Finding:
    """That a checkpoint is saved by some ranks only is a hang first, by the symptom's own boundary."""
    return replace(one, symptom=load_taxonomy().symptom("collective-hang")) if while_saving(run, one.ranks) else one


def _with_place(run: Run, one: Finding) -> Finding:
    """Where the missing rank stands now, if somebody has looked."""
    stood = standing(run)
    here = next((stood[rank] for rank in one.ranks if rank in stood), None)
    said = f"{here.does} at {here.shown}: it " if here else ""
    last = "" if here else f"; the last that it called is {one.fields['odd']}{one.fields['odd_at']}"
    evidence = (*one.evidence[:1], *([Evidence(here.event)] if here else []), *one.evidence[1:])
    own = {"collective-order-divergence": 0.3} if here and not here.for_peers else {}  # it is in no other collective
    weights = {**one.weights, **own, **(PLACES.get(here.waits, {}) if here else {})}
    return replace(one, fields={**one.fields, "stands": said, "last": last}, evidence=evidence, weights=weights)


def _of(run: Run, *kinds: str) -> list[Difference]:
    if not any(event.kind == "trace" for event in run.events):
        return []
    return [one for one in differences(run) if one.kind in kinds]


def _finding(run: Run, rule: Rule, one: Difference) -> Finding:
    """The dumps are of the last attempt: an earlier one's were overwritten."""
    events = [replace(event, text=text) for text, event in one.events]
    fields = {
        "group": one.group,
        "seq": str(one.seq),
        "op": one.op,
        "waiting": listed(one.waiting) or "?",
        "odd": one.odd or "nothing that was recorded",
        "usual": one.usual or "nothing that was recorded",
        "odd_at": f" at {one.odd_site}" if one.odd_site else "",
        "usual_at": f" at {one.usual_site}" if one.usual_site else "",
        "kind": one.kind,
    }
    if one.ranks:
        fields["accused"] = listed(one.ranks)
    found = on_events(rule, events, one.ranks, fields)
    last = max((event.attempt for event in run.events), default=0)
    return replace(found, confidence=one.confidence, attempt=last, weights=_WEIGHTS.get(one.kind, {}))

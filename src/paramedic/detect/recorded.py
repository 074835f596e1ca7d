"""What the flight recorders of the ranks show, as findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from paramedic.detect.arrivals import always_last
from paramedic.detect.difference import CALLED_BY, Difference
from paramedic.detect.hang import PLACES, is_saving, saving_is_a_hang
from paramedic.detect.match import on_events
from paramedic.detect.ranks import listed
from paramedic.detect.situation import parting, situation
from paramedic.detect.stacks import Standing, doing, standing
from paramedic.detect.traces import differences, standstill
from paramedic.knowledge import Rule, load_taxonomy
from paramedic.model import Evidence, Finding, Run, is_own
from paramedic.regex import regex

_WEIGHTS: Mapping[str, Mapping[str, float]] = {
    "order": {"collective-order-divergence": 6.0},
    "type": {"collective-order-divergence": 6.0},
    "groups": {"collective-order-divergence": 6.0},
    "ahead": {"collective-order-divergence": 2.0},
    "shape": {"uneven-work-across-ranks": 2.0},
    "dtype": {"uneven-work-across-ranks": 0.2, "precision-or-numerics-misconfiguration": 2.0},
}
_SURE = 0.85
_HANGS = ("collective-hang", "rendezvous-setup-hang")
_LOST = "worker-or-node-loss"
_ALL = "(default_pg)"
"""The group of all ranks need not be named."""
_LEAST_ON_NODE = 4
"""Fewer ranks that are silent need not be all of a node."""
_OTHER_CALLS: Mapping[str, float] = {"collective-order-divergence": 6.0}
"""Tensors differ because the calls do."""
_CLOCK = regex(r"(?<![0-9:])[0-9]{2}:(?P<minute>[0-5][0-9]):(?P<second>[0-5][0-9])(?![0-9:])")
_MEASURED = regex(r"(?<![0-9:.,])[0-9]{1,6}\.[0-9]{1,9}(?![0-9.:])")
"""A step's line has numbers that were measured; a watcher's, which only says that it lives, has none."""
_LOCKING = regex(r"threading\.py:\d+ in __enter__$| in _?acquire(?:_?[lL]ock)?$")
_FORKED = regex(r"concurrent/futures/process\.py:\d+ in _process_worker$|multiprocessing/pool\.py:\d+ in worker$")
_BY_FORK = {"framework-implementation-defect": 250.0}
_TOO_SHORT: Mapping[str, float] = {"communication-backend-misconfiguration": 60.0, "uneven-work-across-ranks": 4.0}
_USUAL_LIMIT_MS = 600_000
"""How long a collective of NCCL's group may take where nobody has set a limit."""
_QUARTER = 900
_MOMENT = 3
"""So many seconds after the call a step's line may have been written that was finished before it."""
_WRITTEN, _STEPS_AFTER = "Flight Recorder debug info", 5
_OTHER_MODEL: Mapping[str, float] = {"model-construction-error": 60.0}
_OTHER_PROGRAM: Mapping[str, float] = {"cross-node-environment-skew": 100.0}
_FEWER_STEPS: Mapping[str, float] = {"uneven-work-across-ranks": 3.0}


def missing(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A rank that never came to the collective in which the others wait; not if it says itself what befell it."""
    for one in _of(run, found, "missing"):
        if not _told_why(found, one):
            said = _with_place(run, _finding(run, rule, one))
            weights = {**said.weights, **(_TOO_SHORT if _works_on(run, found, one) else {})}
            yield _in_set_up(replace(said, weights=weights), one)


def _works_on(run: Run, found: Sequence[Finding], one: Difference) -> bool:
    """A bar that moved before the others' timeout moves on after it, and they wait for less than torch's own limit: the
    missing rank is at work, and longer than they were told to wait."""
    limits = [
        limit for _, event in one.events if isinstance(limit := event.fields.get("timeout_ms"), int) and limit > 0
    ]
    if not limits or min(limits) >= _USUAL_LIMIT_MS:
        return False
    ends = [f.evidence[0].event for f in found if f.severity == "error" and f.symptom in _HANGS]
    bars = [bar for bar in run.of_kind("bars") if bar.rank in (None, *one.ranks)]
    return any(
        min(lines) < end.line < max(lines)
        for bar in bars
        for end in ends
        if end.source == bar.source and end.line and (lines := bar.fields.get("at"))
    )


def silent(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that left no record at all, while all others have one and wait; not if they say what befell them. Who says
    that a node was lost, and not which ranks that were, means these."""
    for one in _of(run, found, "unheard"):
        said = _in_set_up(_finding(run, rule, one), one)
        lost = not one.first and _timed_out(found) and _is_node(run, one.ranks)
        said = replace(said, symptom=load_taxonomy().symptom(_LOST)) if lost else said
        nodes = [other for other in found if lost and other.symptom == _LOST and not other.ranks]
        if nodes:
            said = replace(said, fields={name: value for name, value in said.fields.items() if name != "accused"})
        if not _told_why([other for other in found if other not in nodes], one):
            yield said


def _is_node(run: Run, ranks: Sequence[int]) -> bool:
    """Whole nodes are silent: ranks are numbered node by node. A timeout makes every watchdog that lives write."""
    size, world = len(ranks), len(run.expected_ranks)
    whole = size >= _LEAST_ON_NODE and world % size == 0 and ranks[0] % size == 0
    return whole and tuple(ranks) == tuple(range(ranks[0], ranks[0] + size))


def unstarted(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that have called the collective in which the others wait, but whose GPU has not begun it."""
    for one in _of(run, found, "unstarted"):
        slow = always_last(run)
        if not _told_why(found, one) and (slow is None or slow.rank not in one.ranks or one.confidence >= _SURE):
            yield _finding(run, rule, one)


def last(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A rank to which the others come back to wait in step after step of a job that goes on."""
    slow = always_last(run) if run.of_kind("trace") else None
    if slow and not [one for one in differences(run) if one.kind != "unstarted" and not one.doubtful]:
        fields = {
            "accused": str(slow.rank),
            "group": slow.group.told,
            "times": str(slow.times),
            "held": f"{slow.held_ms / slow.times:.0f}",
            "share": f"{min(1.0, slow.held_ms / slow.span_ms):.0%}",
        }
        yield on_events(rule, slow.events, (slow.rank,), fields)


def stalled(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The same collective on all ranks, which none finishes: by the record's own times, or since logs tell of a
    timeout. One that is the first of all is a set-up that hangs; one that the library gave up with an error of a link
    is that error."""
    one = standstill(run) if run.of_kind("trace") else None
    given_up = any(other.severity == "error" and other.symptom == "communication-runtime-error" for other in found)
    if one and (one.age_ms or _timed_out(found)) and not given_up and not _told_why(found, one):
        yield _in_set_up(_finding(run, rule, one), one)


def _in_set_up(said: Finding, one: Difference) -> Finding:
    return replace(said, symptom=load_taxonomy().symptom("rendezvous-setup-hang")) if one.first else said


def _told_why(found: Sequence[Finding], one: Difference) -> bool:
    """Somebody who matters has failed for a reason of their own."""
    own = [other for other in found if other.severity == "error" and other.consequence == "never"]
    return any(not other.ranks or {*other.ranks}.intersection(one.ranks or one.waiting) for other in own)


def order(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that call another collective than the others at the same point, or the same in another order."""
    for one in _of(run, found, "order", "type", "groups"):
        said = saving_is_a_hang(run, _finding(run, rule, one))
        saves = one.kind == "groups" and any(
            map(is_saving, (*one.odd_site.split(CALLED_BY), *one.usual_site.split(CALLED_BY)))
        )
        yield replace(said, symptom=load_taxonomy().symptom("collective-hang")) if saves else said


def sizes(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks whose tensor has another size or type than the others'."""
    yield from (_finding(run, rule, one) for one in _of(run, found, "shape", "dtype"))


def roots(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that take another rank for the root of a gather or scatter."""
    yield from (_finding(run, rule, one) for one in _of(run, found, "root"))


def peers(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Sends and receives without their other half; where nobody has posted anything else in its place, nothing differs:
    they only wait."""
    for one in _of(run, found, "p2p", "p2p-size"):
        said = _finding(run, rule, one)
        yield replace(said, symptom=load_taxonomy().symptom("collective-hang")) if one.unposted else said


def ahead(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A rank that waits in a collective to which nobody else has come."""
    yield from (_finding(run, rule, one) for one in _of(run, found, "ahead"))


def _with_place(run: Run, one: Finding) -> Finding:
    """Where the missing rank stands now, if somebody has looked."""
    stood = standing(run)
    here = next((stood[rank] for rank in one.ranks if rank in stood), None) or _lonely(stood, one.ranks)
    said = f"{here.does} at {here.shown}: it " if here else ""
    last = "" if here else f"; the last that it called is {one.fields['odd']}{one.fields['odd_at']}"
    evidence = (*one.evidence[:1], *([Evidence(here.event)] if here else []), *one.evidence[1:])
    own = {"collective-order-divergence": 0.3} if here and not here.for_peers else {}  # it is in no other collective
    weights = {**one.weights, **own, **(PLACES.get(here.waits, {}) if here else {}), **_locked_in_fork(run, one.ranks)}
    known = {"place": here.shown, **doing(here)} if here else {"after": f"its last recorded call, {one.fields['odd']}"}
    fields = {**one.fields, **known, "stands": said, "last": last}
    return replace(one, fields=fields, evidence=evidence, weights=weights)


def _lonely(stood: Mapping[int, Standing], ranks: Sequence[int]) -> Standing | None:
    """Of processes that nobody has numbered, the one that stands elsewhere than all others, which stand together: it is
    the one rank that is missing."""
    nameless = [one for rank, one in stood.items() if rank < 0]
    usual = max(Counter(one.place for one in nameless).items(), key=lambda item: item[1], default=("", 0))[0]
    apart = [one for one in nameless if one.place != usual]
    return apart[0] if len(ranks) == len(apart) == 1 and len(nameless) > 2 and not apart[0].for_peers else None


def _locked_in_fork(run: Run, ranks: Sequence[int]) -> Mapping[str, float]:
    """Workers of the missing rank that were forked while a thread of their parent held a lock, and now wait for it."""
    stacks = [
        e.fields.get("frames") or [""] for e in run.of_kind("stack") if e.rank in ranks and not e.fields.get("main")
    ]
    locked = [frames for frames in stacks if _LOCKING.search(frames[-1]) and any(map(_FORKED.search, frames))]
    return _BY_FORK if len(locked) > 1 else {}


def _sites(one: Difference) -> dict[str, str]:
    """The lines from which the two calls were made, in the user's own code; where they part, if both are known."""
    odd, usual = (
        [frame for frame in reversed(site.split(CALLED_BY)) if is_own(frame)] for site in (one.odd_site, one.usual_site)
    )
    fields = {} if one.kind == "missing" else parting(odd, usual, 0 in one.ranks)
    return fields | ({"call_line": usual[-1].partition(" in ")[0]} if usual else {})


def _is_peer(op: str) -> bool:
    return op.startswith(("send ", "recv "))


def _of(run: Run, found: Sequence[Finding], *kinds: str) -> list[Difference]:
    if not run.of_kind("trace"):
        return []
    some = [one for one in differences(run) if one.kind in kinds]
    if _timed_out(found):
        return some
    goes_on = _trains_after_writing(run)
    return [one for one in some if not (one.doubtful or goes_on or _trains_on(run, one))]


def _trains_after_writing(run: Run) -> bool:
    """Steps follow in the log after it says that records were written, as when somebody has asked for them."""
    wrote = {e.source: e.line or 0 for e in run.of_kind("last") if _WRITTEN in e.text}
    told = ((e.fields.get("at", ()), wrote[e.source]) for e in run.of_kind("progress") if e.source in wrote)
    return any(sum(line > since for line in lines) >= _STEPS_AFTER for lines, since in told)


def _trains_on(run: Run, one: Difference) -> bool:
    """The log tells of steps after the call in which ranks waited: they have waited for a moment, as while one saves.
    Zones are whole quarters of an hour apart, so that clocks need not say theirs."""
    made = [since for _, event in one.events if isinstance(since := event.fields.get("since_s"), int) and since > 0]
    steps = [e.text for e in run.of_kind("last", "progress") if e.kind == "progress" or e.fields.get("again", 0) > 1]
    told = [clock for text in steps if _MEASURED.search(text) and (clock := _CLOCK.search(text))]
    since = max(made, default=0) % _QUARTER
    later = [(int(clock["minute"]) * 60 + int(clock["second"]) - since) % _QUARTER for clock in told]
    return bool(made) and any(_MOMENT < seconds < _QUARTER // 2 for seconds in later)


def _timed_out(found: Sequence[Finding]) -> bool:
    return any(one.severity == "error" and one.symptom in _HANGS for one in found)


def _finding(run: Run, rule: Rule, one: Difference) -> Finding:
    """The dumps are of the last attempt: an earlier one's were overwritten."""
    events = [replace(event, text=text) for text, event in one.events]
    call = f"collective number {one.seq}" + ("" if one.group.endswith(_ALL) else f" of {one.group}")
    fields = {
        "group": one.group,
        "call": call,
        "seq": str(one.seq),
        "op": one.op,
        "waiting": listed(one.waiting) or "?",
        "odd": one.odd or "nothing that was recorded",
        "usual": one.usual or "nothing that was recorded",
        "odd_at": f" at {one.odd_site}" if one.odd_site else "",
        "usual_at": f" at {one.usual_site}" if one.usual_site else "",
        "kind": one.kind,
        "for": f", for {one.age_ms / 1000:.0f} s" if one.age_ms else "",
        "entered": f"entered {call}" if not _is_peer(one.op) else f"posted its half in {one.group}",
    }
    if one.ranks:
        fields["accused"] = listed(one.ranks)
        fields = {**situation(run, one.ranks), **_sites(one), **fields}
    found = on_events(rule, events, one.ranks, fields)
    last = max((event.attempt for event in run.events), default=0)
    weights = _OTHER_CALLS if one.elsewhere else _FEWER_STEPS if one.fewer else _WEIGHTS.get(one.kind, {})
    weights = _OTHER_PROGRAM if one.revised else _OTHER_MODEL if one.shard and not one.elsewhere else weights
    return replace(found, confidence=one.confidence, attempt=last, weights=weights)

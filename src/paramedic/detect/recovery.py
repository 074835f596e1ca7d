"""Restarts that did not bring the job back: the first failure, and what stopped the attempt after it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from paramedic.detect.match import on_events
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run

MEETING = ("rendezvous-setup-failure", "rendezvous-setup-hang")
_STOPPED_BY = {
    **dict.fromkeys(MEETING, "rendezvous-endpoint-conflict"),
    "checkpoint-resume-failure": "checkpoint-layout-mismatch",
    "path-or-permission-error": "resource-leak-or-retained-reference",
    "resource-allocation-failure": "resource-leak-or-retained-reference",
}
"""What goes wrong on the way back, and the cause that it speaks for."""

_SURE = 0.5
_DOES_NOT_FIT = re.compile(
    r"loading state_dict|[Mm]issing key|[Uu]nexpected key|size mismatch|parameter group"
    r"|not found in (?:the )?checkpoint"
)
"""A checkpoint that is whole but does not fit stops every restart, whoever was lost before it."""


def failed(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The job had been training, lost a rank, and its last attempt ended while it met again or read its state."""
    by_attempt: dict[int, list[Finding]] = defaultdict(list)
    for one in found:
        if one.severity == "error" and one.consequence != "always":
            by_attempt[one.attempt].append(one)
    if len(by_attempt) < 2 or len({source.job for source in run.sources} - {""}) > 1:
        return  # nothing was started again, or somebody has submitted another job
    first, last = by_attempt[min(by_attempt)], _roots(by_attempt[max(by_attempt)])
    stopped = [one for one in last if one.symptom in _STOPPED_BY]
    began = [one for one in first if one.symptom not in _STOPPED_BY]
    if not stopped or not began:
        return
    sure = sorted(began, key=lambda one: (one.consequence != "never", not one.ranks))[0]
    if any(one.symptom in (sure.symptom, began[0].symptom) for one in last):
        return
    its_own = sure.consequence == "never" and not all(_DOES_NOT_FIT.search(_said(one)) for one in stopped)
    ranks = (sure.ranks or _on_one_node(run, sure)) if its_own else ()
    said = [one.evidence[0].event for one in (sure, *began, *stopped)]
    words = next(event for event in said if event.kind != "exit")
    events = [words, *(event for event in (said[0], stopped[0].evidence[0].event) if event is not words)]
    fields = {"loss": str(sure.symptom).replace("-", " "), "stopped": str(stopped[0].symptom).replace("-", " ")}
    if ranks:
        fields["accused"] = ", ".join(map(str, ranks))
    one = on_events(rule, events, ranks, fields)
    surer = max(one.confidence, min(stopped[0].confidence + 0.005, 0.97))
    yield replace(one, confidence=surer, weights={_STOPPED_BY[stopped[0].symptom]: 8.0})


def _said(one: Finding) -> str:
    return one.evidence[0].event.text


def _roots(errors: Sequence[Finding]) -> Sequence[Finding]:
    """What cannot be an echo, if we are sure enough of it; a bare exit code is not."""
    sure = [one for one in errors if one.confidence >= _SURE]
    return [one for one in sure if one.consequence == "never"] or sure


def _on_one_node(run: Run, one: Finding) -> tuple[int, ...]:
    """A restarting agent names only the local rank; in one console, where local and global ranks agree, it is both."""
    exits = run.of_kind("exit")
    alike = all(event.rank in (None, event.fields.get("local_rank")) for event in exits)
    local = one.evidence[0].event.fields.get("local_rank")
    known = len(run.sources) == 1 and alike and 0 in run.expected_ranks
    return (local,) if known and isinstance(local, int) and local in run.expected_ranks else ()


_BROKEN = ("accelerator-fault",)
_SO_OFTEN = 3


def on_the_same_part(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Every attempt, and there were several, ended with an error of one device: restarts put the job back on it."""
    by_attempt: dict[int, list[Finding]] = defaultdict(list)
    for one in found:
        if (
            one.severity == "error"
            and one.consequence == "never"
            and one.ranks
            and one.evidence[0].event.rank is not None
        ):
            by_attempt[one.attempt].append(one)
    if len(by_attempt) < _SO_OFTEN or max(by_attempt) != len(by_attempt) - 1:
        return
    each = [next((one for one in these if one.symptom in _BROKEN), None) for these in by_attempt.values()]
    broken = [one for one in each if one is not None]
    if len(broken) == len(each) and len({one.ranks for one in broken}) == 1 and len(broken[0].ranks) == 1:
        fields = {"attempts": str(len(broken)), "accused": str(broken[0].ranks[0])}
        yield on_events(rule, [one.evidence[0].event for one in broken], broken[0].ranks, fields)

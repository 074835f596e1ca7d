"""Jobs that wait for what the platform does not give them, and why it does not."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from paramedic.detect.match import on_events
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run

_NOT_ADMITTED = re.compile(
    r"couldn't assign flavors to pod set (?P<set>[\w.-]{1,80}): (?P<why>[^\n]{1,240})"
    r"|(?P<reason>insufficient (?:unused )?quota for \S{1,80} in flavor [^\n]{1,200})"
)
_ADMITTED = re.compile(r"\bAdmitted by ClusterQueue\b|\bQuota reserved in ClusterQueue\b")
_EVICTED = re.compile(
    r"(?P<why>Preempted to accommodate a workload(?: \([^)\n]{1,160}\))?(?: due to [\w -]{1,80})?)"
    r"|\bEvictedDueTo(?P<reason>Preempted|ClusterQueueStopped|LocalQueueStopped)\b"
)
_STATE = re.compile(r"^\s{0,12}[Mm]essage:|\(x\d{1,6} over \d")
_NEVER_FITS = re.compile(r"maximum capacity|unavailable in ClusterQueue|borrowing limit|doesn't match|supports only")
_UNHEALTHY = re.compile(r"device marked unhealthy: (?P<device>\S{1,80})|marking device as unhealthy")
_HEALTHY_AGAIN = re.compile(r"device marked healthy: (?P<device>\S{1,80})")
_SCHEDULER, _LAUNCH, _HARDWARE = "preemption-or-scheduler-action", "launcher-or-rank-misconfiguration", "hardware-fault"
_CLEAR = 8.0


def not_admitted(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Kueue's last word on the job is that there is no quota for it; what it says while others run is no failure yet,
    and what it said before it admitted the job is over. A job that it has just evicted, as its processes tell, failed
    by that."""
    if _evictions(run) and _seen_to_end(found) and not _keeps_waiting(run):
        return
    by_source: dict[str, list[Event]] = defaultdict(list)
    for event in run.of_kind("line"):
        if "quota" in event.text or "assign flavors" in event.text or "ClusterQueue" in event.text:
            by_source[event.source].append(event)
    for events in by_source.values():
        waiting = [(event, said) for event in events if (said := _NOT_ADMITTED.search(event.text)) is not None]
        admitted = max((event.seq for event in events if _ADMITTED.search(event.text)), default=-1)
        if not waiting or waiting[-1][0].seq < admitted:
            continue
        event, said = waiting[-1]
        why = said["why"] or said["reason"]
        cause = _LAUNCH if _NEVER_FITS.search(why) else _SCHEDULER
        yield replace(on_events(rule, [event], (), {"why": why.rstrip(" .\"'")}), weights={cause: _CLEAR})
        return


def evicted(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Kueue took back what the job ran with; where it is not the job's trouble by now that it waits for quota since."""
    told = _evictions(run)
    waits = any(_NOT_ADMITTED.search(event.text) for event in run.of_kind("line"))
    if told and (not waits or (_seen_to_end(found) and not _keeps_waiting(run))):
        event, said = told[0]
        yield on_events(rule, [event], (), {"why": said["why"] or said["reason"]})


def _evictions(run: Run) -> list[tuple[Event, re.Match[str]]]:
    return [(event, said) for event in run.of_kind("line") if (said := _EVICTED.search(event.text)) is not None]


def _keeps_waiting(run: Run) -> bool:
    """By the workload's state, or as an event that came again and again: it was refused since, too."""
    said = [event.text for event in run.of_kind("line") if _NOT_ADMITTED.search(event.text)]
    return any(_STATE.search(text) for text in said)


def _seen_to_end(found: Sequence[Finding]) -> bool:
    """Processes of the job tell of their end, or their launcher does."""
    return any(one.symptom == "worker-or-node-loss" and "signal" in one.evidence[0].event.text for one in found)


def unhealthy_device(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A pod cannot be placed, nothing has trained, and a node has stopped offering one of its devices."""
    unplaced = [one for one in found if one.symptom == rule.symptom and one.severity == "error"]
    if not unplaced or run.stepping:
        return
    lines = run.saying("healthy", "line")
    again = {said["device"] for event in lines if (said := _HEALTHY_AGAIN.search(event.text)) is not None}
    gone = [e for e in lines if (said := _UNHEALTHY.search(e.text)) is not None and said["device"] not in again]
    if not gone:
        return
    broken = [one.evidence[0].event for one in found if one.symptom == "accelerator-fault" and one.severity == "error"]
    events = [*broken[:1], gone[-1], unplaced[0].evidence[0].event]
    yield replace(on_events(rule, events, ()), weights={_HARDWARE: _CLEAR})

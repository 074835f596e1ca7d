"""Jobs that wait for what the platform does not give them, and why it does not."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from paramedic.detect.match import on_events
from paramedic.detect.once import once
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_NOT_ADMITTED = regex(
    r"couldn't assign flavors to pod set (?P<set>[\w.-]{1,80}): (?P<why>[^\n]{1,240})"
    r"|(?P<reason>insufficient (?:unused )?quota for \S{1,80} in flavor [^\n]{1,200})"
)
_ADMITTED = regex(r"\bAdmitted by ClusterQueue\b|\bQuota reserved in ClusterQueue\b")
_EVICTED = regex(
    r"(?P<why>Preempted to accommodate a workload(?: \([^)\n]{1,160}\))?(?: due to [\w -]{1,80})?)"
    r"|\bEvictedDueTo(?P<reason>Preempted|ClusterQueueStopped|LocalQueueStopped)\b"
)
_STATE = regex(r"^\s{0,12}[Mm]essage:|\(x\d{1,6} over \d")
_NEVER_FITS = regex(r"maximum capacity|unavailable in ClusterQueue|borrowing limit|doesn't match|supports only")
_UNHEALTHY = regex(r"device marked unhealthy: (?P<device>\S{1,80})|marking device as unhealthy")
_HEALTHY_AGAIN = regex(r"device marked healthy: (?P<device>\S{1,80})")
_SCHEDULER, _LAUNCH, _HARDWARE = "preemption-or-scheduler-action", "launcher-or-rank-misconfiguration", "hardware-fault"
_CLEAR = 8.0
_RAY_JOB = regex(
    r"^\s{0,8}\d{1,5} {1,8}(?P<job>[0-9a-f]{8}) .{0,300}? {2}(?:SUBMISSION|DRIVER) {1,12}(?P<status>[A-Z]{4,12})\b"
)
_RAY_ACTOR = regex(r"^\s{0,8}\d{1,5} {1,8}[0-9a-f]{32} {1,8}\S.{0,120}? {2}ALIVE {1,12}(?P<job>[0-9a-f]{8})\b")
_RAY_GROUP = regex(
    r"^\s{0,8}\d{1,5} {1,8}[0-9a-f]{36} .{0,120}? (?P<job>[0-9a-f]{8}) {1,12}(?P<state>CREATED|PENDING)\b"
)
_RAY_WAITS = regex(r"pending (?:placement groups|tasks/actors)|^Trial status: (?:\d{1,5} \w{1,12} \| )?\d{1,5} PENDING")
"""Rows of `ray list jobs`, `actors` and `placement-groups`, and what `ray status` and Tune say of what waits."""
_OF_JOBS = ("SUBMISSION", "DRIVER")
_OF_RAY = (*_OF_JOBS, "ALIVE", "CREATED", "PENDING", "pending ")
_ENDED = ("FAILED", "STOPPED", "SUCCEEDED")


def not_admitted(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Kueue's last word on the job is that there is no quota for it; what it says while others run is no failure yet,
    and what it said before it admitted the job is over. A job that it has just evicted, as its processes tell, failed
    by that."""
    if _evictions(run) and _seen_to_end(found) and not _keeps_waiting(run):
        return
    by_source: dict[str, list[tuple[Event, re.Match[str]]]] = defaultdict(list)
    for event, said in _refusals(run):
        by_source[event.source].append((event, said))
    admitted: dict[str, int] = {}
    for event in run.saying("ClusterQueue", "line"):
        if _ADMITTED.search(event.text):
            admitted[event.source] = max(event.seq, admitted.get(event.source, -1))
    for source, waiting in by_source.items():
        if waiting[-1][0].seq < admitted.get(source, -1):
            continue
        event, said = waiting[-1]
        why = said["why"] or said["reason"]
        cause = _LAUNCH if _NEVER_FITS.search(why) else _SCHEDULER
        yield replace(on_events(rule, [event], (), {"why": why.rstrip(" .\"'")}), weights={cause: _CLEAR})
        return


def evicted(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Kueue took back what the job ran with; where it is not the job's trouble by now that it waits for quota since."""
    told = _evictions(run)
    if told and (not _refusals(run) or (_seen_to_end(found) and not _keeps_waiting(run))):
        event, said = told[0]
        yield on_events(rule, [event], (), {"why": said["why"] or said["reason"]})


@once
def _evictions(run: Run) -> list[tuple[Event, re.Match[str]]]:
    return _said(run, _EVICTED, "Preempted to accommodate a workload", "EvictedDueTo")


@once
def _refusals(run: Run) -> list[tuple[Event, re.Match[str]]]:
    return _said(run, _NOT_ADMITTED, "assign flavors", "quota")


def _said(run: Run, pattern: re.Pattern[str], *words: str) -> list[tuple[Event, re.Match[str]]]:
    """In the order of the record; one of the words stands in whatever the pattern finds."""
    lines = run.saying_one_of(words, "line")
    return [(event, said) for event in lines if (said := pattern.search(event.text)) is not None]


def _keeps_waiting(run: Run) -> bool:
    """By the workload's state, or as an event that came again and again: it was refused since, too."""
    return any(_STATE.search(event.text) for event, _ in _refusals(run))


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


def held_by_ended_job(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Something waits for room in a Ray cluster, while actors or placement groups live whose job has ended."""
    if not run.saying_one_of(_OF_JOBS, "line"):
        return  # no list of jobs
    ended: dict[str, Event] = {}
    held: dict[str, list[Event]] = defaultdict(list)
    groups: dict[str, list[Event]] = defaultdict(list)
    waits: list[Event] = []
    for event in run.saying_one_of(_OF_RAY, "line"):
        if (job := _RAY_JOB.match(event.text)) is not None:
            if job["status"] in _ENDED:
                ended[job["job"]] = event
        elif (actor := _RAY_ACTOR.match(event.text)) is not None:
            held[actor["job"]].append(event)
        elif (group := _RAY_GROUP.match(event.text)) is not None:
            (groups[group["job"]] if group["state"] == "CREATED" else waits).append(event)
        elif _RAY_WAITS.search(event.text):
            waits.append(event)
    keeper = next((job for job in ended if held[job] or groups[job]), None)
    if keeper is None or not waits:
        return
    counted = ((held[keeper], "actor"), (groups[keeper], "placement group"))
    what = " and ".join(f"{len(said)} {noun}{'s' * (len(said) > 1)}" for said, noun in counted if said)
    events = [waits[-1], ended[keeper], *held[keeper][:1], *groups[keeper][:1]]
    yield on_events(rule, events, (), {"job": keeper, "what": what})

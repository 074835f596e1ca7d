"""After an out-of-memory failure: the command that says what would fit, with all that the files beside the log say."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from paramedic.collect.project import read_project
from paramedic.detect import footprint, memory
from paramedic.detect.setup import Setup
from paramedic.fix import MOST
from paramedic.model import Finding, Fix
from paramedic.report import ShownReport

SYMPTOM = "device-out-of-memory"
RULES = ("MEM001", "MEM002")
PATTERN = "resource-and-memory-tuning"


def with_plan(report: ShownReport, paths: Sequence[str]) -> ShownReport:
    verdict = report.verdict
    if verdict is None or verdict.rule not in RULES:
        return report
    found = _planned(verdict, report.run.world_size, paths)
    findings = tuple(found if one is verdict or one == verdict else one for one in report.findings)
    return replace(report, verdict=found, findings=findings)


def _planned(verdict: Finding, world: int | None, paths: Sequence[str]) -> Finding:
    card = _card(verdict)
    folder = next((path for path in paths if os.path.isdir(path)), "")
    job = _job(folder) if folder else None
    command = footprint.plan_command(job, card, world, folder)
    states = _states(job)
    title = f"See what would fit: {command}"
    before = (
        1 if job is not None and job.model is not None else MOST - 1
    )  # it only looks: what changes something is first
    if states is not None and card is not None and states > card:
        title = (
            f"Parameters and optimizer states alone take {memory.human(states)} of {memory.human(card)} on each rank: "
            "no smaller batch fits; ask which settings do"
        )
        before = 0
    elif job is not None:
        title = "Ask which settings of this job would fit, the smallest change first; no GPU is needed"
    fix = Fix(PATTERN, title, "manual", {"kind": "command", "run": command}, cause="device-memory-overcommit")
    return replace(verdict, fixes=(*verdict.fixes[:before], fix, *verdict.fixes[before:])[:MOST])


def _card(verdict: Finding) -> int | None:
    """As the message itself says."""
    for one in verdict.evidence:
        oom = memory.parse(one.event.text)
        if oom is not None and oom.total:
            return oom.total
    return None


def _job(folder: str) -> footprint.Job | None:
    """The only one that the folder's scripts start; with several nobody knows which of them failed."""
    found = list(footprint.jobs(Setup(read_project(folder))))
    return found[0] if len(found) == 1 else None


def _states(job: footprint.Job | None) -> int | None:
    if job is None or job.model is None:
        return None
    count = footprint.parameters({key: fact.value for key, fact in job.model.facts.items()})
    return footprint.least_bytes(job, count) if count else None

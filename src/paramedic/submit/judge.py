"""What an attempt's failure was: the pipeline reads what it left, and the report is kept beside it."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from paramedic.errors import ParamedicError
from paramedic.run_folder import whole
from paramedic.submit import rank_logs, resume
from paramedic.submit.policy import Ended, Failure, failure_of
from paramedic.submit.spec import ENGINE, LOGS, WATCH, Plan

if TYPE_CHECKING:
    from paramedic.report import ShownReport
    from paramedic.submit.standing import Attempt


def judge(plan: Plan, attempt: Attempt, engine: str) -> Failure:
    report = diagnosis(plan.folder)
    if report is not None:
        _keep(report, plan.folder)
    last = rank_logs.last_line(plan.folder, plan.spec.ranks_per_node)
    verdict = report.verdict if report else None
    return failure_of(verdict, Ended(engine, attempt.reason, attempt.code, attempt.hosts, last, _progressed(plan)))


def diagnosis(folder: str) -> ShownReport | None:
    """None where the attempt left nothing to read."""
    from paramedic.pipeline import diagnose

    there = [path for name in (WATCH, LOGS, ENGINE) if os.path.isdir(path := os.path.join(folder, name))]
    try:
        return diagnose(there) if there else None
    except ParamedicError:
        return None


def _keep(report: ShownReport, folder: str) -> None:
    from paramedic.report import render

    for format, name in (("json", "report.json"), ("html", "report.html"), ("text", "report.txt")):
        with contextlib.suppress(ParamedicError, OSError), whole(os.path.join(folder, name)) as file:
            file.write(render(report, format).encode("utf-8", "replace"))


def _progressed(plan: Plan) -> bool:
    if not plan.spec.checkpoint:
        return False
    found, _ = resume.newest(plan.spec.checkpoint, plan.spec.world_size)
    return found is not None and found.path != plan.resume

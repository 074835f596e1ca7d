"""GitHub workflow annotations: one `::error file=…,line=…,title=…::message` line for each finding."""

from __future__ import annotations

import re

from paramedic.model import Event, Finding, Report
from paramedic.report.action import copyable
from paramedic.report.escape import crop, one_line, printable
from paramedic.report.words import by_probability, examined, name, no_verdict, origin, others, percent, where

_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}
_NO_FILE = re.compile(r"-\Z|[a-z][a-z0-9+.-]+:", re.I)


def render(report: Report) -> str:
    """The verdict first: GitHub shows only the first ten of each kind."""
    found = [*([report.verdict] if report.verdict else ()), *others(report)]
    lines = [_annotation(finding) for finding in found]
    if report.verdict is None:
        message = f"Examined {examined(report.run)}; {len(report.skipped)} could not be examined."
        lines.append(_command("notice", {"title": f"No verdict: {no_verdict(report)}"}, message))
    return "".join(f"{line}\n" for line in lines)


def _annotation(finding: Finding) -> str:
    properties = _location(finding.evidence[0].event) if finding.evidence else {}
    properties["title"] = f"{finding.rule}: {name(finding.symptom)} ({name(finding.stage)}), {where(finding)}"
    return _command(_COMMANDS[finding.severity], properties, _message(finding))


def _location(event: Event) -> dict[str, str]:
    """A member of an archive is annotated on the archive, which has no lines; a stream on nothing."""
    if _NO_FILE.match(event.source):
        return {}
    archive, member, _ = event.source.partition("!/")
    found = {"file": one_line(archive)}
    if not member and event.line is not None:
        found["line"] = str(event.line)
    return found


def _message(finding: Finding) -> str:
    lines = [f"{crop(one_line(finding.summary), 1000)} ({percent(finding.confidence)} sure)"]
    if finding.evidence:
        event = finding.evidence[0].event
        lines.append(f"Evidence ({origin(event)}): {crop(one_line(event.text), 600)}")
    if finding.causes:
        cause = by_probability(finding.causes)[0]
        lines.append(f"Most likely cause: {name(cause.id)}, {percent(cause.probability)}")
    if finding.fixes:
        fix = finding.fixes[0]
        lines.append(f"Do this ({fix.safety}): {one_line(fix.title)}\n{copyable(fix.action)}".rstrip("\n"))
    lines.append(f"Learn more: paramedic explain {finding.rule}")
    return "\n".join(lines)


def _command(command: str, properties: dict[str, str], message: str) -> str:
    listed = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{command} {listed}::{_data(message)}"


def _data(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

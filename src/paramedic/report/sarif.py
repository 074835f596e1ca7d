"""SARIF 2.1.0: one result for each finding, its evidence as locations, its rule with its help."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from paramedic.model import Event, Finding, Report, Skipped
from paramedic.report.action import copyable
from paramedic.report.document import causes, tool_version
from paramedic.report.escape import one_line, printable, shorten
from paramedic.report.json import dumps
from paramedic.report.known import Known
from paramedic.report.words import name, others, percent, when, where

if TYPE_CHECKING:
    from paramedic.knowledge import Knowledge

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_SNIPPET = 4000


def render(report: Report, knowledge: Knowledge | None = None) -> str:
    found = [*([report.verdict] if report.verdict else ()), *others(report)]
    known = Known.of(knowledge)
    rules = list(dict.fromkeys(finding.rule for finding in found))
    severities = {finding.rule: finding.severity for finding in reversed(found)}
    run = {
        "tool": {
            "driver": {
                "name": "paramedic",
                "version": tool_version(),
                "rules": [_rule(id, severities[id], known) for id in rules],
            }
        },
        "automationDetails": {"id": f"paramedic/{_uri(report.run.id)}"},
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [_notification(skipped) for skipped in report.skipped],
            }
        ],
        "results": [_result(finding, rules, finding is report.verdict) for finding in found],
    }
    return dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule(id: str, severity: str, known: Known) -> dict[str, Any]:
    made: dict[str, Any] = {"id": printable(id), "defaultConfiguration": {"level": _LEVELS[severity]}}
    rule = known.rules.get(id)
    if rule is None:
        return made
    sections = ("What it means", "Confirm", "Fix", "Not this")
    markdown = "\n\n".join(f"## {heading}\n{rule.section(heading)}" for heading in sections)
    made |= {
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": known.symptom(rule.symptom)},
        "help": {"text": markdown.replace("## ", ""), "markdown": markdown},
        "properties": {"tags": [rule.symptom.stage, str(rule.symptom)]},
    }
    return made | ({"helpUri": rule.references[0]} if rule.references else {})


def _result(finding: Finding, rules: list[str], is_verdict: bool) -> dict[str, Any]:
    events = [evidence.event for evidence in finding.evidence]
    properties = {
        "verdict": is_verdict,
        "stage": finding.stage,
        "symptom": str(finding.symptom),
        "scope": finding.scope,
        "ranks": list(finding.ranks),
        "hosts": [printable(host) for host in finding.hosts],
        "confidence": round(finding.confidence, 3),
        "causes": [cause | {"why": printable(cause["why"])} for cause in causes(finding.causes)],
    }
    return {
        "ruleId": printable(finding.rule),
        "ruleIndex": rules.index(finding.rule),
        "kind": "fail",
        "level": _LEVELS[finding.severity],
        "rank": round(min(max(finding.confidence, 0.0), 1.0) * 100, 1),
        "message": {"text": _message(finding)},
        "locations": [_location(event) for event in events[:1]],
        "relatedLocations": [_location(event, number) for number, event in enumerate(events[1:], 1)],
        "partialFingerprints": {"paramedicFinding/v1": _fingerprint(finding)},
        "properties": properties,
    }


def _message(finding: Finding) -> str:
    """What viewers would read as a link is broken up; braces are doubled, as SARIF asks."""
    lines = [f"{shorten(one_line(finding.summary), _SNIPPET)} ({where(finding)}, {percent(finding.confidence)} sure)"]
    if finding.causes:
        lines.append(f"Most likely cause: {name(max(finding.causes, key=lambda c: c.probability).id)}.")
    if finding.fixes:
        fix = finding.fixes[0]
        lines.append(f"Do this ({fix.safety}): {one_line(fix.title)}\n{copyable(fix.action)}".rstrip("\n"))
    return _literal("\n".join(lines))


def _literal(text: str) -> str:
    return text.replace("](", "] (").replace("{", "{{").replace("}", "}}")


def _location(event: Event, id: int | None = None) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": max(event.line, 1)} if event.line is not None else {}
    if region:
        region["snippet"] = {"text": shorten(printable(event.text), _SNIPPET)}
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(event.source)}}
    logical = [{"name": f"rank {event.rank}", "kind": "process"}] if event.rank is not None else []
    logical += [{"name": printable(event.host), "kind": "host"}] if event.host else []
    time = when(event)
    return {
        **({"id": id} if id else {}),
        "physicalLocation": physical | ({"region": region} if region else {}),
        **({"logicalLocations": logical} if logical else {}),
        **({"properties": {"time": printable(time)}} if time else {}),
    }


def _uri(source: str) -> str:
    """Names stay readable (`a.tar!/x`, `-`); absolute paths become file: URIs."""
    quoted = quote(source.lstrip("/"), safe="/!-._~+,@=", errors="backslashreplace")
    return f"file:///{quoted}" if source.startswith("/") else quoted


def _fingerprint(finding: Finding) -> str:
    """The same failure in the next run is the same alert: ranks, times and line numbers do not count."""
    source = finding.evidence[0].event.source if finding.evidence else ""
    parts = "\0".join((finding.rule, finding.symptom, finding.scope, source))
    return hashlib.sha256(parts.encode("utf-8", "backslashreplace")).hexdigest()


def _notification(skipped: Skipped) -> dict[str, Any]:
    text = f"{one_line(skipped.what)}: {one_line(skipped.why)}"
    return {"level": "warning", "message": {"text": _literal(text)}}

"""A report as plain data: the JSON document that report.schema.json describes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any

from paramedic.model import Cascade, Cause, Evidence, Finding, Fix, Report, Run
from paramedic.report.escape import encodable
from paramedic.report.words import by_probability, when

SCHEMA_VERSION = 1
_LISTS = (list, tuple)


@cache
def tool_version() -> str:
    try:
        return metadata.version("paramedic")
    except metadata.PackageNotFoundError:
        return "0.0.0"


def document(report: Report) -> dict[str, Any]:
    """Log text stays as it was read, so a consumer must escape it; only lone surrogates are made visible."""
    made = {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "paramedic", "version": tool_version()},
        "run": _run(report.run),
        "verdict": _finding(report.verdict) if report.verdict else None,
        "findings": [_finding(finding) for finding in report.findings],
        "cascades": [_cascade(cascade) for cascade in report.cascades],
        "skipped": [{"what": skipped.what, "why": skipped.why} for skipped in report.skipped],
        "suppressed": [{"rule": left.rule, "why": left.why, "ranks": list(left.ranks)} for left in report.suppressed],
    }
    plain: dict[str, Any] = _plain(made)
    return plain


def _run(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "frameworks": list(run.frameworks),
        "world_size": run.world_size,
        "ranks_seen": list(run.ranks_seen),
        "sources": len(run.sources),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "symptom": str(finding.symptom),
        "stage": finding.stage,
        "severity": finding.severity,
        "scope": finding.scope,
        "ranks": list(finding.ranks),
        "hosts": list(finding.hosts),
        "confidence": round(min(max(finding.confidence, 0.0), 1.0), 3),
        "summary": finding.summary,
        "causes": causes(finding.causes),
        "fixes": [_fix(fix) for fix in finding.fixes],
        "evidence": [_evidence(evidence) for evidence in finding.evidence],
    }


def causes(found: tuple[Cause, ...]) -> list[dict[str, Any]]:
    """The likeliest first, in thousandths that never sum to more than 1."""
    ordered = by_probability(found)
    total = max(1.0, sum(cause.probability for cause in ordered))
    exact = [max(cause.probability, 0.0) / total * 1000 for cause in ordered]
    shares = [round(share) for share in exact]
    if sum(shares) > 1000:
        shares = [math.floor(share) for share in exact]
    return [
        {"id": cause.id, "probability": share / 1000, "why": cause.why}
        for cause, share in zip(ordered, shares, strict=True)
    ]


def _fix(fix: Fix) -> dict[str, Any]:
    made = {"pattern": fix.pattern, "title": fix.title, "safety": fix.safety, "action": fix.action}
    return made | ({"verify": fix.verify} if fix.verify else {})


def _evidence(evidence: Evidence) -> dict[str, Any]:
    event = evidence.event
    return {
        "source": event.source,
        "rank": event.rank,
        "line": event.line,
        "time": when(event),
        "text": event.text,
    }


def _cascade(cascade: Cascade) -> dict[str, Any]:
    return {
        "symptom": str(cascade.symptom),
        "ranks": list(cascade.ranks),
        "because": cascade.because,
        "count": cascade.count,
    }


def _plain(value: Any) -> Any:
    """Only what JSON has: no lone surrogates, no NaN, no objects."""
    if isinstance(value, str):
        return encodable(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, _LISTS):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {encodable(str(key)): _plain(item) for key, item in value.items()}
    return encodable(str(value))

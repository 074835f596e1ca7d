"""Which fix to try first, with the values that the evidence gives filled in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from paramedic.knowledge import Knowledge
from paramedic.knowledge.cures import load_cures
from paramedic.model import Finding, Fix, Report

MOST = 3
"""Never a list of twenty."""
_NAMED = re.compile(r"\{(\w+)\}")


def propose(report: Report, knowledge: Knowledge) -> Report:
    """Gives every finding its rule's fixes, the most likely cause's first."""
    findings = tuple(replace(f, fixes=fixes_for(f, knowledge)) for f in report.findings)
    verdict = findings[0] if report.verdict is not None else None
    return replace(report, findings=findings, verdict=verdict)


def fixes_for(finding: Finding, knowledge: Knowledge) -> tuple[Fix, ...]:
    """The rule's own; before them the cure of the most likely cause, where the rule knows none for it."""
    likely = {cause.id: cause.probability for cause in finding.causes}
    top = max(likely.values(), default=0.0)
    known = [fix for fix in knowledge.rules[finding.rule].fixes if _is_told(fix, finding.fields)]
    fixes = sorted(known, key=lambda fix: -(likely.get(fix.cause, 0.0) if fix.cause else top))
    if finding.causes and not any(fix.cause in (None, finding.causes[0].id) for fix in known):
        fixes.insert(0, load_cures()[finding.causes[0].id])
    return tuple(_filled(fix, finding.fields) for fix in fixes[:MOST])


def _is_told(fix: Fix, fields: Mapping[str, str]) -> bool:
    """What its title names is known: else the rule has another, for when it is not."""
    return all(name in fields for name in _NAMED.findall(fix.title))


def _filled(fix: Fix, fields: Mapping[str, str]) -> Fix:
    """Plain replacement of `{name}` by the captured text: what comes from a log is never a template."""

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            for name, text in fields.items():
                value = value.replace("{" + name + "}", text)
        return value

    action = {key: fill(value) for key, value in fix.action.items()}
    if "edit" in action:
        action = _for_editing(fix.action, action, fields)
    return replace(fix, title=fill(fix.title), action=action)


def _for_editing(template: Mapping[str, Any], action: dict[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """A number stays a number where the whole value is one field; the section says where in the file."""
    value = template.get("value")
    if isinstance(value, str) and re.fullmatch(r"\{\w+\}", value):
        with suppress(ValueError):
            action["value"] = json.loads(action["value"])
    action |= {name: int(fields[name]) for name in ("section", "line") if fields.get(name, "").isdigit()}
    return {"part": fields["part"], **action} if "part" in fields else action

"""Findings that a project lives with: allowed with a reason, in a comment or the settings, or known from a baseline."""

from __future__ import annotations

import fnmatch
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.model import Event, Finding, Run, Suppressed

VERSION = 1
_MOST = 32 << 20
_ALLOW = re.compile(r"([A-Z]{2,6}\d{3})(?:[ \t]+([^:\s]+))?[ \t]*:[ \t]*(\S.*)", re.S)


def set_aside(
    found: Iterable[Finding], run: Run, allow: Sequence[str], baseline: Path | None
) -> tuple[list[Finding], list[Suppressed]]:
    comments: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in run.events:
        if event.kind == "allowed" and event.fields["reason"]:
            for rule in event.fields["rules"]:
                comments[event.source, rule].append(event)
    settings = [_parsed(text) for text in allow]
    known = _read(baseline) if baseline else Counter[tuple[str, str, str]]()
    kept: list[Finding] = []
    left_out: list[Suppressed] = []
    for finding in found:
        why = _commented(finding, comments.get(_place(finding), ())) or _set(finding, settings)
        if not why and known[_mark(finding)] > 0:
            known[_mark(finding)] -= 1
            why = "in the baseline"
        if why:
            left_out.append(Suppressed(finding.rule, f"{_where(finding)}: {why}"))
        else:
            kept.append(finding)
    return kept, left_out


def _where(finding: Finding) -> str:
    event = finding.evidence[0].event
    return f"{event.source}:{event.line}" if event.line else event.source


def _place(finding: Finding) -> tuple[str, str]:
    return finding.evidence[0].event.source, finding.rule


def _commented(finding: Finding, comments: Sequence[Event]) -> str:
    """By those of its file and its rule that give a reason: without one nothing is allowed."""
    line = finding.evidence[0].event.line
    for comment in comments:
        lines = comment.fields["lines"]
        if not lines or line in lines:
            return f"allowed: {comment.fields['reason']}"
    return ""


def _parsed(text: str) -> tuple[str, str, str]:
    found = _ALLOW.fullmatch(text.strip())
    if found is None:
        raise ParamedicError(f"allow = [{text!r}]: write it like 'CFG101 configs/*.json: the reason'")
    return found[1], found[2] or "*", found[3]


def _set(finding: Finding, settings: Sequence[tuple[str, str, str]]) -> str:
    source = finding.evidence[0].event.source
    for rule, pattern, reason in settings:
        if finding.rule == rule and fnmatch.fnmatchcase(source, pattern):
            return f"allowed: {reason}"
    return ""


# -- baseline ------------------------------------------------------------------------------------------------------


def _mark(finding: Finding) -> tuple[str, str, str]:
    """What stays the same when lines move."""
    event = finding.evidence[0].event
    return finding.rule, event.source, event.text


def write(path: Path, findings: Iterable[Finding]) -> str:
    """The baseline's text: what is there now is known, and only new findings count."""
    rows = [dict(zip(("rule", "source", "text"), _mark(finding), strict=True)) for finding in findings]
    return json.dumps({"paramedic_baseline": VERSION, "findings": rows}, indent=1, ensure_ascii=False) + "\n"


def _read(path: Path) -> Counter[tuple[str, str, str]]:
    try:
        with open(path, "rb") as raw:
            data: Any = json.loads(raw.read(_MOST).decode("utf-8"))
        if data["paramedic_baseline"] != VERSION:
            raise ParamedicError(f"{path}: a baseline of another version; write it anew with --write-baseline")
        return Counter((str(row["rule"]), str(row["source"]), str(row["text"])) for row in data["findings"])
    except OSError as error:
        raise ParamedicError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ParamedicError(f"{path}: no baseline; write one with --write-baseline {path}") from None

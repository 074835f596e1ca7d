"""Which fix to try first, with the values that the evidence gives filled in."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import replace
from typing import Any

from paramedic.knowledge import Knowledge
from paramedic.knowledge.cures import load_cures
from paramedic.model import Finding, Fix, Report, is_own, last_exception

MOST = 3
"""Never a list of twenty."""
_LONGEST = 200
_HOLE = re.compile(r"(?<!\$)\{([a-z_]+)\}")
_OF_PYTHON = re.compile(r"""\bf(['"]).*?\1""")
_PLAIN = re.compile(r"[\w./~][\w./~@:+,=-]*", re.A)
_NAMES = ("package", "module", "path", "name", "attribute", "host")
_PACKAGES = {
    "apex": "git+https://github.com/NVIDIA/apex",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "megatron": "megatron-core",
    "PIL": "Pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
}
"""Modules whose package has another name."""
_FOLDERS = ("folder", "checkpoint folder", "data folder")


def propose(report: Report, knowledge: Knowledge) -> Report:
    """Gives every finding its rule's fixes, the most likely cause's first."""
    findings = tuple(replace(f, fixes=fixes_for(f, knowledge)) for f in report.findings)
    verdict = findings[0] if report.verdict is not None else None
    return replace(report, findings=findings, verdict=verdict)


def fixes_for(finding: Finding, knowledge: Knowledge) -> tuple[Fix, ...]:
    """The rule's own; before them the cure of the most likely cause, where the rule knows none for it."""
    likely = {cause.id: cause.probability for cause in finding.causes}
    top = max(likely.values(), default=0.0)
    told = _told(finding)
    known = [fix for fix in knowledge.rules[finding.rule].fixes if _holes(fix.title) <= told.keys()]
    fixes = sorted(known, key=lambda fix: -(likely.get(fix.cause, 0.0) if fix.cause else top))
    if finding.causes and not any(fix.cause in (None, finding.causes[0].id) for fix in known):
        fixes.insert(0, load_cures()[finding.causes[0].id])
    return tuple(_filled(fix, told) for fix in fixes[:MOST])


def _told(finding: Finding) -> dict[str, str]:
    """What a rule captured; and, for the cures that no rule has written, the quoted error with the frame of the user's
    own code."""
    fields = dict(finding.fields)
    quoted = next((e.event for e in finding.evidence if e.event.fields.get("types")), None)
    if quoted is not None:
        fields.setdefault("exception", last_exception(quoted)[:_LONGEST])
        own = [str(frame) for frame in quoted.fields.get("frames", ()) if is_own(str(frame))]
        fields |= {"where": fields.get("where", own[-1])} if own else {}
    return fields


def _filled(fix: Fix, fields: Mapping[str, str]) -> Fix:
    """Plain replacement of `{name}` by the captured text: what comes from a log is never a template. What nobody has
    captured is left out with all that needs it."""
    holes = {part for value in (*fix.action.values(), fix.title, fix.verify) for part in _holes(value)} - fields.keys()

    def fill(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        value = _named(value, fields)
        for name, text in fields.items():
            value = value.replace("{" + name + "}", text)
        return value

    action = {key: fill(value) for key, value in _without(fix.action, holes).items()}
    if "edit" in action:
        action = _for_editing(fix.action, action, fields)
    verify = "" if _holes(fix.verify) & holes else fill(fix.verify)
    return replace(fix, title=fill(fix.title), action=action, verify=verify)


def _holes(value: Any) -> set[str]:
    """The names in braces that are to be filled: neither a shell's `${HOME}` nor those of Python's f-strings."""
    return set(_HOLE.findall(_OF_PYTHON.sub("", value))) if isinstance(value, str) else set()


def _without(action: Mapping[str, Any], holes: Set[str]) -> dict[str, Any]:
    """Half a command or half a setting is none; of a hint the lines stay that can be said."""
    if not any(_holes(value) & holes for value in action.values()):
        return dict(action)
    lines = [line for line in str(action.get("hint", "")).split("\n") if not _holes(line) & holes]
    kept = {"hint": "\n".join(lines)} if any(lines) else {}
    return {"kind": action["kind"], **kept}


def _named(template: str, fields: Mapping[str, str]) -> str:
    """`<module>` and the like with the name that the message gave, where it may stand in a shell as it is."""
    known = {name: fields[name] for name in _NAMES if name in fields}
    if "module" in fields:
        module = fields["module"].split(".")[0]
        known["package of the module"] = _PACKAGES.get(module, module)
    if "path" in fields:
        known |= {"checkpoint file": fields["path"], **dict.fromkeys(_FOLDERS, os.path.dirname(fields["path"]))}
    for name, text in known.items():
        if _PLAIN.fullmatch(text):
            template = template.replace(f"<{name}>", text)
    return template


def _for_editing(template: Mapping[str, Any], action: dict[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """A number stays a number where the whole value is one field; the section says where in the file."""
    value = template.get("value")
    if isinstance(value, str) and re.fullmatch(r"\{\w+\}", value):
        with suppress(ValueError):
            action["value"] = json.loads(action["value"])
    action |= {name: int(fields[name]) for name in ("section", "line") if fields.get(name, "").isdigit()}
    return {"part": fields["part"], **action} if "part" in fields else action

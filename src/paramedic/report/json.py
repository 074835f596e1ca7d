"""The JSON document as text that is safe to print: what would steer a terminal is escaped in it."""

from __future__ import annotations

import json
import re
from typing import Any

from paramedic.garbage import no_collections
from paramedic.model import Report
from paramedic.report.document import document

_NOT_PLAIN = re.compile(r"[^ -~\n]")


def render(report: Report) -> str:
    with no_collections():
        return dumps(document(report))


def dumps(value: Any) -> str:
    """Unicode stays readable; characters that do not print are escaped and read back as what they were."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return _NOT_PLAIN.sub(lambda found: _escaped(found.group()), text)


def _escaped(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]

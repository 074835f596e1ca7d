"""Jupyter notebooks → what their cells printed and raised, in their order, as a terminal would have shown it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from paramedic.regex import regex

_LOOKS = regex(rb'\s{0,200}\{\s{0,200}"(?:cells|metadata|nbformat(?:_minor)?)"\s{0,20}:')
MOST = 16 << 20
"""A larger one is mostly pictures, and is not read."""
_MOST_PARTS = 1_000_000
"""Lists and objects: each takes seventy bytes of memory, and two of the file. No notebook has as many."""


def is_notebook(head: bytes) -> bool:
    return _LOOKS.match(head) is not None


def outputs(data: bytes) -> bytes | None:
    """None: not a notebook after all."""
    if data.count(b"[") + data.count(b"{") > _MOST_PARTS:
        return None
    try:
        book = json.loads(data)
    except (ValueError, RecursionError):
        return None
    cells = book.get("cells") if isinstance(book, dict) else None
    if not isinstance(cells, list):
        return None
    text = "".join(part for cell in cells for part in _shown(cell))
    return text.encode("utf-8", "replace")


def _shown(cell: Any) -> Iterator[str]:
    found = cell.get("outputs") if isinstance(cell, dict) else None
    for output in found if isinstance(found, list) else ():
        if isinstance(output, dict):
            raised = output.get("output_type") == "error"
            text = _joined(output.get("traceback"), "\n") if raised else _joined(output.get("text"), "")
            yield text if not text or text.endswith("\n") else text + "\n"


def _joined(lines: Any, glue: str) -> str:
    if isinstance(lines, str):
        return lines
    return glue.join(line for line in lines if isinstance(line, str)) if isinstance(lines, list) else ""

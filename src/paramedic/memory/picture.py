"""Memory over the step, as bars for a terminal. `page` draws it for a browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paramedic.memory.cards import GIB

KINDS = {
    "parameters": "parameters", "optimizer": "optimizer states", "gradients": "gradients", "inputs": "inputs",
    "activations": "activations", "communication": "communication", "temporaries": "temporaries",
    "workspaces": "workspaces",
}  # fmt: skip
"""From the bottom up: what stays comes first."""
_COLUMNS = 72
_ROWS = 8
_BLOCKS = " ▁▂▃▄▅▆▇█"


def total(point: dict[str, int]) -> int:
    return sum(point.get(kind, 0) for kind in KINDS)


def chart(series: dict[str, Any]) -> Iterator[str]:
    """Columns of blocks, each the highest moment of its stretch, with the phases below."""
    points, events = series["points"], max(series["events"], 1)
    if not points:
        return
    highest = [0] * _COLUMNS
    for point in points:
        column = min(point["event"] * _COLUMNS // events, _COLUMNS - 1)
        highest[column] = max(highest[column], total(point))
    for column in range(1, _COLUMNS):
        highest[column] = highest[column] or highest[column - 1]
    most = max(*highest, 1)
    for row in range(_ROWS, 0, -1):
        cells = "".join(_cell(value * _ROWS * 8 // most - (row - 1) * 8) for value in highest)
        label = f"{most / GIB:7.2f} GiB " if row == _ROWS else " " * 12
        yield f"{label}│{cells}"
    yield " " * 12 + "└" + _phases(series, events)


def _cell(eighths: int) -> str:
    return _BLOCKS[min(max(eighths, 0), 8)]


def _phases(series: dict[str, Any], events: int) -> str:
    line = ["─"] * _COLUMNS
    for phase in series["phases"]:
        at = min(phase["event"] * _COLUMNS // events, _COLUMNS - 1)
        for offset, letter in enumerate(phase["phase"]):
            if phase["phase"] in ("forward", "backward", "optimizer") and at + offset < _COLUMNS:
                line[at + offset] = letter
    return "".join(line)

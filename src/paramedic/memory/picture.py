"""Memory over the step: bars for a terminal, stacked areas as SVG, one HTML page around them."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from paramedic.memory.cards import GIB

WIDTH, HEIGHT, LEFT, BOTTOM = 960, 320, 64, 28
COLOURS = {
    "parameters": "#4269d0", "optimizer": "#9c6b4e", "gradients": "#3ca951", "activations": "#efb118",
    "communication": "#a463f2", "temporaries": "#ff725c", "workspaces": "#9498a0", "inputs": "#97bbf5",
}  # fmt: skip
_COLUMNS = 72
_ROWS = 8
_BLOCKS = " ▁▂▃▄▅▆▇█"


def total(point: dict[str, int]) -> int:
    return sum(point.get(kind, 0) for kind in COLOURS)


def chart(series: dict[str, Any], top: int) -> Iterator[str]:
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


def svg(series: dict[str, Any], card: int | None = None) -> str:
    """Stacked by owner; the card's size as a line where it is near enough to matter."""
    points, events = series["points"], max(series["events"], 1)
    most = max([total(point) for point in points] or [1])
    near = card is not None and card < 2 * most
    top = max(most, card or 0) * 1.05 if near else most * 1.05
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="memory over the step">']
    base = [0] * len(points)
    for kind, colour in COLOURS.items():
        if not any(point.get(kind) for point in points):
            continue
        upper = [low + point.get(kind, 0) for low, point in zip(base, points, strict=True)]
        outline = [_at(point["event"], value, events, top) for point, value in zip(points, upper, strict=True)]
        back = [_at(point["event"], value, events, top) for point, value in zip(points, base, strict=True)][::-1]
        parts.append(f'<polygon fill="{colour}" points="{" ".join(outline + back)}"><title>{kind}</title></polygon>')
        base = upper
    parts += _marks(series, events, top, card if near else None)
    return "".join([*parts, "</svg>"])


def _at(event: int, value: float, events: int, top: float) -> str:
    x = LEFT + (WIDTH - LEFT) * event / events
    y = (HEIGHT - BOTTOM) * (1 - value / top)
    return f"{x:.1f},{y:.1f}"


def _marks(series: dict[str, Any], events: int, top: float, card: int | None) -> Iterator[str]:
    for share in (0.25, 0.5, 0.75):
        x, y = _at(0, top * share, events, top).split(",")
        yield f'<line x1="{x}" y1="{y}" x2="{WIDTH}" y2="{y}" stroke="#8884" />'
        label = f"{top * share / GIB:.1f} GiB"
        yield f'<text x="{LEFT - 6}" y="{y}" text-anchor="end" font-size="11" fill="currentColor">{label}</text>'
    for phase in series["phases"]:
        if phase["phase"] not in ("forward", "backward", "optimizer"):
            continue
        x = _at(phase["event"], 0, events, top).split(",")[0]
        yield f'<line x1="{x}" y1="0" x2="{x}" y2="{HEIGHT - BOTTOM}" stroke="currentColor" stroke-dasharray="3 3" />'
        yield f'<text x="{x}" y="{HEIGHT - 10}" font-size="12" fill="currentColor">{escape(phase["phase"])}</text>'
    if card is not None:
        y = _at(0, card, events, top).split(",")[1]
        yield f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH}" y2="{y}" stroke="#d00" stroke-width="2" />'


def page(title: str, words: str, series: dict[str, Any], card: int | None) -> str:
    """One file, nothing loaded from anywhere."""
    legend = " ".join(
        f'<span><i style="background:{colour}"></i>{kind}</span>'
        for kind, colour in COLOURS.items()
        if any(point.get(kind) for point in series["points"])
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
pre {{ overflow-x: auto; }}
i {{ display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }}
</style></head><body>
<h1>{escape(title)}</h1>
<figure>{svg(series, card)}<figcaption>{legend}</figcaption></figure>
<pre>{escape(words)}</pre>
</body></html>
"""

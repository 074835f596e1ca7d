"""Which lines of an error fit on one screen: where the user's own code stood, and what was said in the end."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from paramedic.model import Event, is_own
from paramedic.report.escape import printable

LINES = 6
_INSTALLED = re.compile(r"^/\S*/(?=(?:site|dist)-packages/)|^/\S*/lib(?=/python\d)")
_LAUNCHER = re.compile(r"/s?bin/[^/]*:\d+ in ")
_Line = tuple[str, str]


def short(event: Event, width: int, console: Console) -> list[_Line]:
    """The last frame of the user's own code, the innermost one and the final exception, each with its style."""
    frames: list[_Line] = [(_fitted(frame, width), "dim") for frame in telling_frames(event)]
    said = final_words(event)
    rows = _shared([folded(line[: width * LINES * 2], width, console) for line in said], LINES - len(frames), width)
    return frames + [(row, "") for row in rows]


def whole(event: Event, width: int, console: Console) -> list[_Line]:
    """Every frame and every line."""
    lines: list[_Line] = [(printable(frame), "dim") for frame in _frames(event)]
    lines += [(line, "") for line in printable(event.text).rstrip("\n").split("\n")]
    return [(piece, style) for line, style in lines for piece in folded(line, width, console)]


def telling_frames(event: Event) -> list[str]:
    """Where the user's own code stood last, and where the error arose; installed packages by their short path."""
    frames = [printable(frame) for frame in _frames(event)]
    own = [frame for frame in frames if is_own(frame) and not _LAUNCHER.search(frame)]
    chosen = dict.fromkeys([own[-1], frames[-1]] if own else frames[-2:])
    return [_INSTALLED.sub("…/" if "-packages/" in frame else "…", frame) for frame in chosen]


def final_words(event: Event) -> list[str]:
    """The last exception with all lines of its message. What it was raised from, or what it was quoted by, is told in
    one line before it."""
    lines = _lines(event)
    start = _start(event, lines) or 0
    return [*lines[: min(start, 1)], *lines[start:]]


def headline(event: Event) -> str:
    """The final exception's line, or else what was said last."""
    lines = _lines(event)
    start = _start(event, lines)
    return lines[-1 if start is None else start] if lines else ""


def _lines(event: Event) -> list[str]:
    return [line for line in printable(event.text).split("\n") if line.strip()]


def _start(event: Event, lines: Sequence[str]) -> int | None:
    """Where the last exception begins: its message may have lines of its own."""
    types = event.fields.get("types")
    name = str(types[-1]) if isinstance(types, list | tuple) and types else ""
    return next((i for i in reversed(range(len(lines))) if name and lines[i].startswith(name)), None)


def _frames(event: Event) -> list[str]:
    frames = event.fields.get("frames")
    return [str(frame) for frame in frames] if isinstance(frames, list | tuple) else []


def _fitted(frame: str, width: int) -> str:
    """On one row: the end of a path says more than its start."""
    if cell_len(frame) <= width:
        return frame
    parts = frame.split("/")
    while len(parts) > 1 and cell_len("…/" + "/".join(parts)) > width:
        parts = parts[1:]
    return cut("…/" + "/".join(parts), width)


def _shared(lines: Sequence[list[str]], room: int, width: int) -> list[str]:
    """Every line gets a row before any gets a second one; of too many the first ones and the last stay."""
    if len(lines) > room:
        lines = [*lines[: room - 2], [f"{lines[room - 2][0]} …"], lines[-1]]
    left = room - len(lines)
    rows: list[str] = []
    for line in lines:
        shown = line[: left + 1]
        left -= len(shown) - 1
        if len(shown) < len(line):
            shown[-1] += " …"
        rows += [*shown[:-1], cut(shown[-1], width)]
    return rows


def folded(line: str, width: int, console: Console) -> list[str]:
    """Wrapped between words where it can be."""
    width = max(width, 8)
    if cell_len(line) <= width:
        return [line]
    return [part.plain.rstrip() for part in Text(line).wrap(console, width, overflow="fold")] or [""]


def cut(line: str, width: int) -> str:
    return line if cell_len(line) <= width else chop_cells(line, max(width - 1, 8))[0].rstrip(" …") + "…"

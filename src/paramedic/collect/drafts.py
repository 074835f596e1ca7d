"""Events of a log before it is known who speaks."""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

from paramedic.clocks import Stamp, find_stamp
from paramedic.collect.layouts import Peeled, Who
from paramedic.redact import clipped, clipped_lines

MAX_TEXT = 4_000
MAX_TRACE = 16_000
MAX_CONTEXT = 400
MAX_HOST = 253


class Draft(NamedTuple):
    """An Event, before it is known who speaks: only the whole file tells."""

    kind: str
    text: str
    seq: int
    line: int
    who: Who
    stamp: Stamp | None
    fields: dict[str, Any]


def drafted(kind: str, peeled: Peeled, line: int, stamp_in: str, **fields: Any) -> Draft:
    text = clipped(peeled.text.strip(), MAX_TRACE if kind == "traceback" else MAX_TEXT)
    return Draft(kind, text, line, line, speaker(peeled), find_stamp(stamp_in), fields)


def speaker(peeled: Peeled) -> Who:
    """Also where the line itself names the rank: `Peeled.who` leaves that out."""
    return peeled.by, peeled.rank, peeled.stream


def size(line: Draft) -> int:
    return len(line.text) + sum(map(len, chain(*line.fields.values())))


def clean(line: Draft) -> Draft:
    """Redacted and cut, with what stands around it."""
    around = {side: clipped_lines(lines, MAX_CONTEXT) for side, lines in line.fields.items()}
    return line._replace(text=clipped(line.text, MAX_TEXT), fields=around)

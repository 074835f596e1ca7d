"""JSON texts inside a Run, whose numbers are such as one can count with: a recording is a stranger's file."""

from __future__ import annotations

import json
from typing import Any

from paramedic.regex import regex

_LARGEST = 1 << 64
_MOST, _LEAST = 1e100, 1e-100
"""The product of two such numbers, and the quotient, is still one."""
_ODD = regex(r"\d{19}|[eE][+-]?\d{3}|NaN|Infinity")


def stated(text: str) -> Any:
    """With None for numbers that no program counts with. Raises ValueError or RecursionError for what is no JSON."""
    if not _ODD.search(text):
        return json.loads(text)
    return json.loads(text, parse_int=_whole, parse_float=_real, parse_constant=lambda name: None)


def _whole(digits: str) -> int | None:
    value = int(digits) if len(digits) <= 20 else _LARGEST
    return value if abs(value) < _LARGEST else None


def _real(digits: str) -> float | None:
    value = float(digits)
    return value if not value or _LEAST < abs(value) < _MOST else None

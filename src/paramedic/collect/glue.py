"""Lines of several processes that were written at the same moment, before either's newline: apart again.

`print` writes its text and then the newline. Where two do so at once, their texts stand on one line, and their newlines
behind it: as many empty lines follow as there were others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

from paramedic.regex import regex

_HEAD = 16
"""So many characters of a line's beginning have to come again, with any numbers in them."""
_SHORTEST = 6
"""Of less comes again by itself: two hyphens in a key, of which the pieces would not be known as one."""
_LEAST = 8
_MOST = 64
_LONGEST = 8_192
_PART = regex(rb"\d+|\s+|[^\d\s]")


def apart(lines: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """Each line with its place among them; one that holds several, as it seems, piece by piece."""
    for at, line in enumerate(lines):
        empty = 0
        while line and empty < _MOST and at + 1 + empty < len(lines) and not lines[at + 1 + empty].strip():
            empty += 1
        for piece in _pieces(line, empty + 1) if empty and len(line) <= _LONGEST else (line,):
            yield at, piece


def _pieces(line: bytes, most: int) -> Sequence[bytes]:
    """Cut wherever it begins anew as it began; whole where that is more often than processes spoke."""
    head = line[: min(_HEAD, len(line) // (2 * most))]
    again = _opening(head) if len(head) >= _SHORTEST else None
    cuts = [found.start() for found in again.finditer(line, _LEAST)] if again is not None else []
    if not cuts or len(cuts) >= most:
        return (line,)
    return [line[start:end] for start, end in pairwise((0, *cuts, len(line)))]


@lru_cache(maxsize=256)
def _opening(head: bytes) -> re.Pattern[bytes] | None:
    """Nothing where there are no letters: a row of numbers is like every part of it."""
    parts = _PART.findall(head)[:-1]  # the last may be half a number
    if sum(part.isalpha() for part in parts) < 3 and head.count(b":") + head.count(b"/") + head.count(b"-") < 2:
        return None
    kinds = [rb"\d{1,20}" if part.isdigit() else rb"\s{1,8}" if part.isspace() else re.escape(part) for part in parts]
    if parts[0].isdigit():  # a year stands right behind the last digit of the line before
        kinds[0] = rb"\d{%d}" % len(parts[0])
    return re.compile(b"".join(kinds))

"""One pass over bytes that finds every literal any rule or collector cares about.

hyperscan won the bake-off by much (bench/RESULTS.md); where its wheel is missing, the standard library serves, slowly.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import local

try:
    import hyperscan
except ImportError:  # no wheel for this platform
    hyperscan = None  # type: ignore[assignment,unused-ignore]


Scan = Callable[[bytes], list[tuple[int, int]]]
_TOGETHER = 256
_BETWEEN = b"\xff"  # stands in no UTF-8, so in no literal


class Prefilter:
    """Says where in a block of bytes which literal ends: everywhere, or `once`. Literals are case-sensitive."""

    def __init__(self, literals: Iterable[str], once: bool = False) -> None:
        self.literals = tuple(sorted(set(literals) - {""}))
        self._index = {literal.encode(): number for number, literal in enumerate(self.literals)}
        self._scan = (_hyperscan if hyperscan and self._index else _standard_library)(self._index, once)

    def scan(self, block: bytes) -> list[tuple[int, int]]:
        """(end offset, literal number), in order of position."""
        return self._scan(block)

    def numbers(self, literals: Iterable[str]) -> set[int]:
        """Of those of them that are looked for."""
        return {self._index[raw] for literal in literals if (raw := literal.encode()) in self._index}

    def literals_in(self, text: str) -> set[str]:
        return {self.literals[number] for _, number in self._scan(text.encode("utf-8", "surrogatepass"))}

    def literals_in_each(self, texts: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """For each text the literals in it, sorted. Many in one scan: a call costs more than a short text."""
        for start in range(0, len(texts), _TOGETHER):
            some = [text.encode("utf-8", "surrogatepass") for text in texts[start : start + _TOGETHER]]
            hits = deque(self._scan(_BETWEEN.join(some)))
            end = 0
            for text in some:
                end += len(text)
                found = set()
                while hits and hits[0][0] <= end:
                    found.add(hits.popleft()[1])
                yield tuple([self.literals[number] for number in sorted(found)]) if found else ()
                end += len(_BETWEEN)


def _hyperscan(index: Mapping[bytes, int], once: bool = False) -> Scan:
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=[re.escape(literal) for literal in index],
        ids=list(index.values()),
        elements=len(index),
        flags=[hyperscan.HS_FLAG_SINGLEMATCH if once else 0] * len(index),
    )

    own = local()  # two threads must not scan in the same space

    def scan(block: bytes) -> list[tuple[int, int]]:
        hits: list[tuple[int, int]] = []
        if not hasattr(own, "scratch"):
            own.scratch = database.scratch.clone()

        def on_match(number: int, start: int, end: int, flags: int, context: object) -> None:
            hits.append((end, number))

        database.scan(block, match_event_handler=on_match, scratch=own.scratch)
        return hits

    return scan


def _standard_library(index: Mapping[bytes, int], once: bool = False) -> Scan:
    def scan(block: bytes) -> list[tuple[int, int]]:
        hits = []
        for literal, number in index.items():
            at = block.find(literal)
            while at >= 0:
                hits.append((at + len(literal), number))
                at = -1 if once else block.find(literal, at + 1)
        return sorted(hits)

    return scan

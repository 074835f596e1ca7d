"""Configuration files → settings with their places in the text, so that a finding has a line and a fix an exact span.

One file a format. Nothing is executed or included, and every reader is bounded in size and depth.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

DEEPEST = 64
MOST_ENTRIES = 20_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting. `start:end` is its value in the text, `whole` the key with its value.

    The value of an object is {}, that of a list the plain values in it.
    """

    key: str
    value: Any
    line: int
    start: int = 0
    end: int = 0
    whole: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key[len(self.parent) :].lstrip(".")

    @property
    def parent(self) -> str:
        return _LAST.sub("", self.key)


_LAST = re.compile(r"(?:^|\.)[^.\[]+(?:\[\d+\])*$")


@dataclass(frozen=True, slots=True)
class Section:
    """A file is one section, or several: documents of a YAML file, commands of a script."""

    kind: str
    entries: tuple[Entry, ...]
    number: int = 0


@dataclass(slots=True)
class Parsed:
    entries: list[Entry] = field(default_factory=list)
    duplicates: list[Entry] = field(default_factory=list)
    loose: list[Entry] = field(default_factory=list)
    """Where the text is not strictly of its format: comments or superfluous commas in JSON."""

    def add(self, entry: Entry) -> None:
        if len(self.entries) >= MOST_ENTRIES:
            raise Broken(f"more than {MOST_ENTRIES:,} settings", entry.line)
        self.entries.append(entry)

    def get(self, key: str) -> Any:
        return next((entry.value for entry in self.entries if entry.key == key), None)

    @property
    def top(self) -> set[str]:
        return {entry.key for entry in self.entries if "." not in entry.key and "[" not in entry.key}


class Broken(ValueError):
    """The text cannot be parsed; says where."""

    def __init__(self, why: str, line: int) -> None:
        super().__init__(why)
        self.why, self.line = why, line


class Lines:
    """From offset to line, 1-based, lines split on `\\n` only."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(m.end() for m in re.finditer("\n", text))]

    def of(self, offset: int) -> int:
        return bisect_right(self._starts, offset)

    def start(self, line: int) -> int:
        return self._starts[line - 1]


def bounded(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """All of them; raises Broken where they are more than any file that people write has."""
    parsed = Parsed()
    for entry in entries:
        parsed.add(entry)
    return tuple(parsed.entries)


def duplicates(entries: Iterable[Entry]) -> list[Entry]:
    """The later ones of equal keys."""
    seen: set[str] = set()
    found = []
    for entry in entries:
        if entry.key in seen:
            found.append(entry)
        seen.add(entry.key)
    return found


_NUMBER = re.compile(r"[+-]?(?:\d{1,18}|\d{1,15}(?:\.\d{0,15})?(?:[eE][+-]?\d{1,3})?|\.\d{1,15})")


def typed(text: str) -> Any:
    """A word of a command line as a number or truth value where it is one."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if _NUMBER.fullmatch(text):
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    return text

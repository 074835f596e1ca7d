"""Regular expressions that most lines need not be searched with."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Guarded:
    """One of the words, in lower case, stands in whatever the pattern finds; looking for them costs far less."""

    words: tuple[str, ...]
    pattern: re.Pattern[str]

    def search(self, text: str) -> re.Match[str] | None:
        return self.pattern.search(text) if self.may_be_in(text) else None

    def may_be_in(self, text: str) -> bool:
        low = text.casefold()
        for word in self.words:  # noqa: SIM110 -- `any` would take twice as long, on every line
            if word in low:
                return True
        return False


class Words:
    """Which of many words, without digits and in lower case, stand in a line. Lines that differ only in their numbers,
    as those of training do, are looked through once."""

    def __init__(self, words: Iterable[str]) -> None:
        known = {word: word.encode() for word in words}
        self._of = lru_cache(maxsize=4096)(
            lambda shape: frozenset([word for word, raw in known.items() if raw in shape])
        )

    def present(self, low: str) -> frozenset[str]:
        return self._of(shape(low))


def shape(text: str) -> bytes:
    """Of lines that differ only in their numbers the same. As bytes: of a text they are taken out far more slowly."""
    return text.encode("utf-8", "surrogatepass").translate(None, b"0123456789")


def divides(text: str) -> bool:
    """Whether something like `3/8` may stand in it. A rate has a slash, too, and a path."""
    at = text.find("/")
    while at >= 0:
        if text[max(at - 2, 0) : at].rstrip(" ")[-1:].isdigit() and text[at + 1 : at + 3].lstrip(" ")[:1].isdigit():
            return True
        at = text.find("/", at + 1)
    return False

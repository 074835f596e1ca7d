"""Regular expressions that most lines need not be searched with."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guarded:
    """One of the words, in lower case, stands in whatever the pattern finds; looking for them costs far less."""

    words: tuple[str, ...]
    pattern: re.Pattern[str]

    def search(self, text: str) -> re.Match[str] | None:
        return self.pattern.search(text) if self.may_be_in(text) else None

    def may_be_in(self, text: str) -> bool:
        low = text.casefold()
        return any(word in low for word in self.words)

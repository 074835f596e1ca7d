"""Regular expressions that are compiled when they are first used: a start would wait for a thousand, and needs few."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any, AnyStr, cast


def regex(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """What `re.compile` returns, made on its first use."""
    return cast("re.Pattern[AnyStr]", Later(text, flags))


class Later:
    def __init__(self, text: str | bytes, flags: int) -> None:
        self.pattern = text
        self._flags = flags

    @cached_property
    def _compiled(self) -> re.Pattern[Any]:
        """Held here: re itself keeps fewer than there are."""
        return re.compile(self.pattern, self._flags)

    def __getattr__(self, name: str) -> Any:
        """Asked once for each name: from then on it is found without us."""
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self._compiled, name)
        setattr(self, name, found)
        return found

    def __repr__(self) -> str:
        return f"regex({self.pattern!r})"

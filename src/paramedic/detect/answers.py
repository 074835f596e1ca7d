"""What one rule's detector answers. Where it breaks, that costs its own answer and nobody else's."""

from __future__ import annotations

import os
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.knowledge import Rule
from paramedic.model import Finding, Skipped


class Failed:
    """The rules that could not be asked, by what went wrong: one fault often breaks several."""

    def __init__(self) -> None:
        self._rules: dict[str, list[str]] = defaultdict(list)

    def note(self, rule: Rule, error: Exception) -> None:
        """The error's own words are left out: they may quote the input."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "/paramedic/" in frame.filename] or frames
        where = f"{own[-1].filename.rsplit('/paramedic/', 1)[-1]}:{own[-1].lineno}"
        self._rules[f"{type(error).__name__} at {where}"].append(rule.id)

    def skipped(self) -> Iterator[Skipped]:
        for what, rules in self._rules.items():
            named = ("rule " if len(rules) == 1 else "rules ") + ", ".join(rules)
            why = f"internal error: {what}; PARAMEDIC_DEBUG=1 shows more: please report it"
            yield Skipped(named, why)


def answer(rule: Rule, failed: Failed | None, ask: Callable[..., Iterable[Finding]], *about: Any) -> list[Finding]:
    """A finding without evidence is none. Who looks for faults of ours, by PARAMEDIC_DEBUG, is shown them."""
    try:
        return [one for one in ask(*about) if one.evidence]
    except ParamedicError:
        raise
    except Exception as error:
        if failed is None or os.environ.get("PARAMEDIC_DEBUG"):
            raise
        failed.note(rule, error)
        return []

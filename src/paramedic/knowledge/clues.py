"""What an error that no signature knows says about itself: weighted clues, read from clues.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources

from paramedic.errors import ParamedicError
from paramedic.knowledge.taxonomy import load_taxonomy

PLACES = ("type", "message", "call", "own", "code")


@dataclass(frozen=True, slots=True)
class Clue:
    place: str
    pattern: re.Pattern[str]
    symptoms: Mapping[str, float]
    """Log odds that it adds."""
    causes: Mapping[str, float]
    """Factors for the odds of causes."""
    words: tuple[str, ...] = ("",)
    """One of them, in lower case, stands in whatever the pattern finds."""


OUTRIGHT = 50
"""From this factor on the words name the cause, whoever says them: a full disk is a full disk."""


@lru_cache(maxsize=1024)
def named_causes(message: str) -> Mapping[str, float]:
    """The causes that a message names outright, which count under every rule."""
    low = message.casefold()
    named: dict[str, float] = {}
    for clue in [clue for word, clue in _outright() if word in low]:
        if clue.pattern.search(message):
            named |= {cause: factor for cause, factor in clue.causes.items() if factor >= OUTRIGHT}
    return named


@cache
def _outright() -> list[tuple[str, Clue]]:
    """The few clues of that strength, each under each of its words: every finding asks for them."""
    strong = (clue for clue in load_clues() if max(clue.causes.values(), default=0) >= OUTRIGHT)
    return [(word, clue) for clue in strong if clue.place == "message" for word in clue.words]


@cache
def load_clues() -> tuple[Clue, ...]:
    data = tomllib.loads(resources.files(__package__).joinpath("clues.toml").read_text("utf-8"))
    taxonomy = load_taxonomy()
    clues = []
    for number, entry in enumerate(data["clue"], 1):
        unknown = [s for s in entry["symptoms"] if s not in taxonomy.symptoms]
        unknown += [c for c in entry.get("causes", ()) if c not in taxonomy.causes]
        if unknown or entry["in"] not in PLACES:
            raise ParamedicError(f"clues.toml: clue {number} names the unknown {(*unknown, entry['in'])[0]!r}")
        pattern = re.compile(entry["match"], re.I | re.M)
        words = tuple(entry.get("words", ("",)))
        clues.append(Clue(entry["in"], pattern, entry["symptoms"], entry.get("causes", {}), words))
    return tuple(clues)

"""What a thread waits for, known by its frames: the patterns stand in waits.toml."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from paramedic.model import is_own
from paramedic.regex import regex

_NOTHING = regex(r"(?!)")


@dataclass(frozen=True, slots=True)
class Wait:
    kind: str
    says: str
    tier: int
    peers: bool
    python: re.Pattern[str]
    native: re.Pattern[str]


@cache
def load_waits() -> Mapping[str, Wait]:
    return {
        entry["kind"]: Wait(
            entry["kind"],
            entry["says"],
            entry["tier"],
            entry.get("peers", False),
            _any(entry.get("python", ())),
            _any(entry.get("native", ())),
        )
        for entry in _data()["wait"]
    }


@cache
def for_peers() -> frozenset[str]:
    """The waits that end when other ranks arrive."""
    return frozenset(wait.kind for wait in load_waits().values() if wait.peers)


def waits_in(frames: Sequence[str], native: Sequence[str] = ()) -> str:
    """The kind of wait that a stack shows, or "". Frames have the outermost first, native names the innermost."""
    below = frames[_innermost_own(frames) + 1 :][::-1]
    for tier in (1, 2, 3, 4):
        waits = [wait for wait in load_waits().values() if wait.tier == tier]
        looked_at = below if tier in (2, 4) else frames[::-1]
        if kind := _first(waits, native, looked_at):
            return kind
    return ""


def is_own_frame(frame: str) -> bool:
    """Like `is_own`, also for the short paths of py-spy, which begin at the package."""
    if frame.startswith(("/", "<")):
        return is_own(frame)
    first = frame.partition(" in ")[0].rpartition(":")[0].split("/", 1)[0].removesuffix(".py")
    return bool(first) and first not in sys.stdlib_module_names and first not in _packages()


def _innermost_own(frames: Sequence[str]) -> int:
    return next((at for at in range(len(frames) - 1, -1, -1) if is_own_frame(frames[at])), -1)


def _first(waits: Sequence[Wait], native: Iterable[str], frames: Iterable[str]) -> str:
    for name in native:
        for wait in waits:
            if wait.native.search(name):
                return wait.kind
    for frame in frames:
        for wait in waits:
            if wait.python.search(frame):
                return wait.kind
    return ""


@cache
def _packages() -> frozenset[str]:
    return frozenset(_data()["packages"])


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("waits.toml").read_text("utf-8"))


def _any(patterns: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns)) if patterns else _NOTHING

"""What a run was made of, as it is kept: each thing that was said of it, in bounds and without secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from paramedic.model import Skipped
from paramedic.redact import redact

MOST_FACTS = 20_000
MOST_VALUE = 400
_MOST_VALUES = 8
MOST_HOSTS = 4_096


@dataclass(frozen=True, slots=True)
class Stated:
    """What was said of one thing: all different values, in their order, and where the first one stands. `part`: in what
    kind of list it was said, which the other run may lack as a whole."""

    values: tuple[str, ...]
    source: str
    line: int | None = None
    part: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    text: str
    source: str


@dataclass(slots=True)
class Settings:
    """`stated` is by (kind, key); the kinds are those of `differences.KINDS`."""

    stated: dict[tuple[str, str], Stated] = field(default_factory=dict)
    code: dict[str, Code] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)

    def add(self, kind: str, key: str, value: object, source: str, line: int | None = None, *, part: str = "") -> None:
        key = " ".join(key.split())
        if len(self.stated) >= MOST_FACTS and (kind, key) not in self.stated:
            return  # before anything is looked through for secrets: that is what takes time
        key, text = redact(key)[:200], _shown(key, value)
        known = self.stated.get((kind, key))
        if known is None:
            if key and len(self.stated) < MOST_FACTS:
                self.stated[kind, key] = Stated((text,), source, line, part)
        elif text not in known.values and len(known.values) < (MOST_HOSTS if kind == "hosts" else _MOST_VALUES):
            self.stated[kind, key] = replace(known, values=(*known.values, text))


def _shown(key: str, value: object) -> str:
    """As one line, without secrets; a secret is known by the name that stands before it."""
    if value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        text = str(int(value))
    else:
        text = " ".join(str(value).split())
    name = re.split(r"[.:\s]", key)[-1]
    head = f"{name}:" if text.startswith("//") else f"{name}="  # the rest of an address
    clean = redact(head + text)
    return (clean.removeprefix(head) if clean.startswith(head) else redact(text))[:MOST_VALUE]

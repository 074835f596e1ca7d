"""Configurations as programs print them: nested objects, YAML, dots, `Namespace(…)`, one line or several."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paramedic.collect.packages import VERSION, versions
from paramedic.collect.settings import MOST_VALUE, Settings

_MOST_YAML, _LEAST_YAML = 20_000, 6
_MOST_BLOCK = 400  # lines of a dump
_DEEPEST = 12
_YAML_LINE = re.compile(r"^( {0,16})(?:- )?([A-Za-z_][\w./-]{0,60}):(?: +(.{1,200}))?$")
_DOTTED = re.compile(r"^\s*([A-Za-z_][\w.-]{0,80}) \.{3,} ?(.{0,400})$")
_NAMESPACE = re.compile(
    r"\b(?:Namespace|TrainingArguments|Seq2SeqTrainingArguments|\w{1,40}(?:Args|Arguments|Config))\((.*)$"
)
_ENTRY = re.compile(r"^\s*['\"]?([A-Za-z_][\w.-]{0,80})['\"]? ?[=:] ?(.*?),?\s*$")
_LISTED = re.compile(r"^\s{2,8}([A-Z][\w ./()&-]{3,70}?) = ([\d,.]+)\s*$")
_TORCHRUN = re.compile(
    r"^\s+(entrypoint|min_nodes|max_nodes|nproc_per_node|rdzv_backend|max_restarts|monitor_interval) +: (.*)$"
)


def leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """(key path, value) of nested objects. A list of plain values is one value; depth is bounded."""
    if isinstance(value, dict) and value and depth < _DEEPEST:
        for key, item in [*value.items()][:2_000]:
            yield from leaves(item, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value) and depth < _DEEPEST:
        names = [item.get("name") for item in value[:200] if isinstance(item, dict)]
        named = len({*map(str, names)}) == len(value) and all(isinstance(name, str) and name for name in names)
        for number, item in enumerate(value[:200]):
            yield from leaves(item, f"{path}[{names[number] if named else number}]", depth + 1)
    else:
        yield path or "value", value if not isinstance(value, dict | list) else _compact(value)


def _compact(value: Any) -> str:
    try:
        return json.dumps(value, default=str)[:MOST_VALUE]
    except (ValueError, RecursionError):
        return "…"


def yaml_dumps(lines: Sequence[str]) -> dict[int, tuple[str, str]]:
    """Keys and values of configurations that stand in a log as YAML: several lines of it one after the other, at least
    one of them within another."""
    found: dict[int, tuple[str, str]] = {}
    block: list[tuple[int, re.Match[str]]] = []
    for number, line in enumerate([*lines[:_MOST_YAML], "."], 1):
        if (said := _YAML_LINE.match(line.rstrip("\r"))) is not None:
            block.append((number, said))
        elif not line.lstrip().startswith("- "):
            if len(block) >= _LEAST_YAML and any(said[1] for _, said in block):
                found.update(_nested(block))
            block = []
    return found


def _nested(block: Sequence[tuple[int, re.Match[str]]]) -> Iterator[tuple[int, tuple[str, str]]]:
    above: list[tuple[int, str]] = []
    for number, said in block:
        depth = len(said[1])
        while above and above[-1][0] >= depth:
            above.pop()
        if said[3] is None:
            above.append((depth, said[2]))
        else:
            yield number, (".".join([*(name for _, name in above), said[2]]), said[3])


def dotted(found: Settings, text: str, source: str, number: int) -> bool:
    said = _DOTTED.match(text)
    if said is None or said[2].startswith(": ("):  # timers
        return False
    if not VERSION.search(text[:200]) or "version" not in said[1].lower():
        found.add("argument", said[1], said[2].strip() or "none", source, number, part="dotted")
    else:
        versions(found, text, source, number)
    return True


def dumped(found: Settings, text: str, source: str, number: int) -> bool:
    """`Namespace(lr=0.1, …)` or `{'lr': 0.1, …}` on one line."""
    start = text.find("{")
    if text.rstrip().endswith("}") and text[start + 1 : start + 2] in ("'", '"'):
        inner = text.rstrip()[start + 1 : -1]
    elif (said := _NAMESPACE.search(text)) is not None:
        inner = said[1].strip().removesuffix(")")
    else:
        return False
    if not inner:
        return False
    for part in _split(inner):
        if entry := _ENTRY.match(part):
            found.add("argument", entry[1], entry[2].strip("'\""), source, number, part="dump")
    return True


def _split(text: str) -> Iterator[str]:
    """At commas outside of quotes and brackets."""
    depth, quote, start = 0, "", 0
    for at, character in enumerate(text[:16_000]):
        if quote:
            quote = "" if character == quote and text[at - 1] != "\\" else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth <= 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def listed(found: Settings, text: str, source: str, number: int) -> bool:
    said = _LISTED.match(text) or _TORCHRUN.match(text)
    if said is not None:
        kind = "launch" if said.re is _TORCHRUN else "argument"
        found.add(kind, said[1], said[2].strip().replace(",", ""), source, number, part="listed")
    return said is not None


@dataclass(slots=True)
class Block:
    """A dump over several lines: `TrainingArguments(` … `)`, or JSON behind `Model config X {`."""

    line: int
    closing: str
    lines: list[str]
    depth: int = 1

    @classmethod
    def opened_by(cls, text: str, line: int) -> Block | None:
        if re.search(r"\b\w{0,40}(?:Arguments|Args|Config|Namespace)\($", text.rstrip()):
            return cls(line, ")", [])
        if re.search(r"(?i)(?:config\w*|arguments|json|parameters|settings)\b[^{}]{0,60}\{$", text.rstrip()):
            return cls(line, "}", ["{"])
        return None

    def feed(self, found: Settings, text: str, source: str) -> Block | None:
        self.lines.append(text)
        outside = re.sub(r"\"[^\"\n]*\"|'[^'\n]*'", "", text)
        self.depth += sum(outside.count(c) for c in "([{") - sum(outside.count(c) for c in ")]}")
        if self.depth > 0 and len(self.lines) < _MOST_BLOCK:
            return self
        if self.depth <= 0:
            self._said(found, source)
        return None

    def _said(self, found: Settings, source: str) -> None:
        if self.closing == "}":
            try:
                for key, value in leaves(json.loads("\n".join(self.lines))):
                    found.add("argument", key, value, source, self.line, part="block")
                return
            except (ValueError, RecursionError):
                pass
        for text in self.lines[:-1]:
            if (entry := _ENTRY.match(text)) is not None:
                found.add("argument", entry[1], entry[2].strip("'\""), source, self.line, part="block")

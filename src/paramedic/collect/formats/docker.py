"""Dockerfiles: one entry an instruction, its continuation lines joined."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paramedic.collect.formats import Entry, Lines, Section, bounded

_INSTRUCTION = re.compile(r"^[ \t]*([A-Za-z]+)[ \t]+((?:[^\n\\]|\\(?:\r?\n(?:[ \t]*#[^\n]*\n)*|.))*)", re.M)
_KNOWN = re.compile(
    "FROM|RUN|CMD|LABEL|EXPOSE|ENV|ADD|COPY|ENTRYPOINT|VOLUME|USER|WORKDIR|ARG|ONBUILD|STOPSIGNAL|HEALTHCHECK|SHELL"
)
_PAIR = re.compile(r"(?<!\w)\d*+([A-Za-z_]\w*+)=(\"[^\"\n]*\"|'[^'\n]*'|\S*)")


def section(text: str) -> Section:
    return Section("dockerfile", bounded(_entries(text)))


def _entries(text: str) -> Iterator[Entry]:
    lines, counts = Lines(text), dict[str, int]()
    for found in _INSTRUCTION.finditer(text):
        word = found[1].upper()
        if not _KNOWN.fullmatch(word) or _commented(text, found.start()):
            continue
        number = counts[word] = counts.get(word, -1) + 1
        place = (lines.of(found.start(1)), found.start(2), found.end(2), (found.start(1), found.end(2)))
        yield Entry(f"{word.lower()}[{number}]", re.sub(r"\\\r?\n", " ", found[2]).strip(), *place)
        if word == "ENV":
            yield from _variables(found, lines)


def _commented(text: str, at: int) -> bool:
    return text[at : at + 1] == "#"


def _variables(found: re.Match[str], lines: Lines) -> Iterator[Entry]:
    pairs = list(_PAIR.finditer(found[2]))
    base = found.start(2)
    if not pairs and (old := re.match(r"(\w+)[ \t]+(.*)", found[2], re.S)):
        yield Entry(
            f"env.{old[1]}", old[2].strip(), lines.of(base), base + old.start(2), base + old.end(2), found.span()
        )
    for pair in pairs:
        span = (base + pair.start(2), base + pair.end(2))
        yield Entry(
            f"env.{pair[1]}",
            pair[2].strip("\"'"),
            lines.of(base + pair.start(1)),
            *span,
            (base + pair.start(1), span[1]),
        )

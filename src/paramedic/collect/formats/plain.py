"""Host files and requirements: a line is an entry; and what `pip install` is told in a script or an image."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.utils import canonicalize_name

from paramedic.collect.formats import Entry, Lines, Section, bounded

_LINE = re.compile(r"^[ \t]*+([^\s#](?:[ \t\r]*+[^ \t\r\n])*+)", re.M)
_SLOTS = re.compile(r"\b(?:slots|max[-_]slots)[ \t]*=[ \t]*(\d{1,9})\b")
_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)[ \t]*(?:\[[^\]\n]*\])?[ \t]*([^;#\n]*)")
_INSTALL = re.compile(
    r"(?<![\w/-])(?:pip[\d.]*|(?:python[\d.]*[ \t]+-m|uv)[ \t]+pip)[ \t]+install\b"
    r"((?:\"[^\"\n]*\"|'[^'\n]*'|\\\r?\n|[^\n\\&|;<>#\"'`()])*)"
)
_WORD = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'|([^\s\\]+)")
_WITH_VALUE = re.compile(
    r"-[rcfiet]|--(?:requirement|constraint|find-links|(?:extra-)?index-url|editable|target|no-binary|only-binary"
    r"|progress-bar|timeout|retries|prefix|root|trusted-host|upgrade-strategy)"
)
_PLAIN = re.compile(r"[A-Za-z0-9][\w.-]*(?:\[[\w,.-]*\])?(?:[=<>~!]=?[^$/@:]*)?")


def hosts(text: str) -> Section:
    """The value of a host is its number of slots; None where the line is none that launchers read."""
    return Section("hostfile", bounded(_hosts(text)))


def _hosts(text: str) -> Iterator[Entry]:
    for number, found in _lines(text):
        host = found[1].split()[0]
        slots = _SLOTS.search(found[1])
        value = int(slots[1]) if slots else None
        yield Entry(host, value, number, found.start(1), found.end(1), found.span(1))


def requirements(text: str) -> Section:
    """The value of a package is its constraint as written; an option of pip begins with a hyphen."""
    return Section("requirements", bounded(_requirements(text)))


def _requirements(text: str) -> Iterator[Entry]:
    for number, found in _lines(text):
        if found[1].startswith("-"):
            option, _, value = found[1].replace("=", " ", 1).partition(" ")
            yield Entry(option, value.strip(), number, found.start(1), found.end(1), found.span(1))
        elif said := _REQUIREMENT.match(found[1]):
            name = canonicalize_name(said[1])
            yield Entry(name, said[2].strip(), number, found.start(1), found.end(1), found.span(1))


def _lines(text: str) -> Iterator[tuple[int, re.Match[str]]]:
    line, at = 1, 0
    for found in _LINE.finditer(text):
        line += text.count("\n", at, found.start(1))
        at = found.start(1)
        yield line, found


def installs(text: str) -> Iterator[Section]:
    """Each `pip install` is a section of its own, as a requirements file would be."""
    lines, number = Lines(text), 0
    for command in _INSTALL.finditer(text):
        before = text[text.rfind("\n", 0, command.start()) + 1 : command.start()]
        if re.search(r"#|\becho\b|[\"']", before):
            continue
        if entries := tuple(_installed(text, *command.span(1), lines)):
            yield Section("requirements", entries, number)
            number += 1


def _installed(text: str, start: int, end: int, lines: Lines) -> Iterator[Entry]:
    taken = False
    for word in _WORD.finditer(text, start, end):
        said = word[1] or word[2] or word[3] or ""
        plain = not taken and _PLAIN.fullmatch(said)
        taken = not taken and _WITH_VALUE.fullmatch(said) is not None
        if plain and (found := _REQUIREMENT.match(said)):
            name = canonicalize_name(found[1])
            yield Entry(name, found[2].strip(), lines.of(word.start()), *word.span(), word.span())

"""Environment variables among other settings: a container's `env`, a service's `environment`, `-e`, `--export`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from paramedic.collect.formats import Entry, Section, typed

_OF_CONTAINER = re.compile(r"(.*\benv)\[\d+\]\.name")
_OF_SERVICE = re.compile(r"(services\.[^.]+\.environment)(?:\.(\w+)|\[\d+\])")
_PAIR = re.compile(r"([A-Za-z_]\w*)=(.*)", re.S)
_HANDED_OVER = {"launch-docker": "env", "launch-mpirun": "x", "launch-srun": "export", "slurm": "export"}


def of_documents(documents: Iterable[Section]) -> list[Section]:
    """One section for each container or service."""
    groups: dict[tuple[int, str], list[Entry]] = {}
    for section in documents:
        find = {"kubernetes": _of_containers, "compose": _of_services}.get(section.kind)
        for place, entry in find(section.entries) if find else ():
            groups.setdefault((section.number, place), []).append(entry)
    return [Section("environment", tuple(entries), number) for number, entries in enumerate(groups.values())]


def _of_containers(entries: Sequence[Entry]) -> Iterator[tuple[str, Entry]]:
    values = {entry.key: entry for entry in entries if entry.key.endswith("].value")}
    for entry in entries:
        found = _OF_CONTAINER.fullmatch(entry.key)
        if found and isinstance(entry.value, str):
            value = values.get(entry.key.removesuffix("name") + "value")
            known = typed(value.value) if value and isinstance(value.value, str) else None
            span = (value.start, value.end) if value else (entry.end, entry.end)
            yield found[1], Entry(entry.value, known, entry.line, *span, entry.whole)


def _of_services(entries: Sequence[Entry]) -> Iterator[tuple[str, Entry]]:
    for entry in entries:
        found = _OF_SERVICE.fullmatch(entry.key)
        if found and found[2]:
            known = typed(entry.value) if isinstance(entry.value, str) else entry.value
            yield found[1], replace(entry, key=found[2], value=known)
        elif found and isinstance(entry.value, str):
            yield from ((found[1], one) for one in _pairs(entry, [entry.value]))


def of_launches(sections: Iterable[Section]) -> Iterator[Section]:
    """`-e NAME=value`, `-x NAME=value`, `--export=ALL,NAME=value`; the script's own exports are section 0."""
    for number, section in enumerate(sections, 1):
        key = _HANDED_OVER.get(section.kind)
        given = [entry for entry in section.entries if entry.key == key and isinstance(entry.value, str)]
        listed = key == "export"
        pairs = [pair for entry in given for pair in _pairs(entry, entry.value.split(",") if listed else [entry.value])]
        if pairs:
            yield Section("environment", tuple(pairs), number)


def _pairs(entry: Entry, texts: Sequence[str]) -> Iterator[Entry]:
    """Only a pair that stands alone has a place of its own."""
    for text in texts:
        if found := _PAIR.fullmatch(text.strip("\"'")):
            at = (entry.end - len(found[2]), entry.end) if len(texts) == 1 else (0, 0)
            yield Entry(found[1], typed(found[2]), entry.line, *at, entry.whole if len(texts) == 1 else (0, 0))

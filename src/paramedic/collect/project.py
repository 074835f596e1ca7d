"""A project folder → Run: its configurations as facts, its programs as events. Nothing in it is executed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from paramedic.collect import code, configs, tree
from paramedic.collect.formats import Broken, launch
from paramedic.collect.launch import wanted
from paramedic.garbage import no_collections
from paramedic.model import Event, Fact, Run, Skipped, Source
from paramedic.redact import redact

COMMAND = "command line"
_ALLOW = re.compile(
    r"(?:#|//|/\*|<!--)[ \t]*paramedic:[ \t]*(allow|allow-file)[ \t]+"
    r"([A-Z]{2,6}\d{3}(?:[ \t]*,[ \t]*[A-Z]{2,6}\d{3})*)[ \t:–-]*([^\n]*)"
)
_MOST_ALLOWED = 1_000
"""Remarks in one file: each may be a finding of its own."""
_PARALLEL = 96
"""Files: fewer are read sooner by one process."""

Progress = Callable[[str, int], None]


@dataclass(slots=True)
class Read:
    """What one file gave."""

    sources: list[Source] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


def read_project(root: str, progress: Progress | None = None) -> Run:
    skipped: list[Skipped] = []
    return read_files([file for file in tree.files(root, skipped) if is_wanted(file)], progress, skipped)


def read_files(files: Sequence[tree.File], progress: Progress | None = None, skipped: Sequence[Skipped] = ()) -> Run:
    files = tree.without_secrets(files)
    with no_collections():  # syntax trees come and go by the thousand, and have no cycles
        return _run(_read_all(files, progress), skipped)


def read_command(words: Sequence[str]) -> Run:
    """A launch command, read and never started: its settings, and what it asks a checkpoint to fit."""
    text, sections = launch.of_command(words)
    source = Source(COMMAND, "command", lines=1, bytes=len(text))
    return Run(COMMAND, (source,), (), (*configs.facts_of(COMMAND, list(sections)), *wanted(words)))


def joined(runs: Sequence[Run]) -> Run:
    """One Run of several: they may come from files, a command, nodes."""
    return Run(
        runs[0].id if runs else "",
        tuple(source for run in runs for source in run.sources),
        tuple(event for run in runs for event in run.events),
        tuple(fact for run in runs for fact in run.facts),
        tuple(skipped for run in runs for skipped in run.skipped),
        next((run.world_size for run in runs if run.world_size), None),
        tuple(dict.fromkeys(name for run in runs for name in run.frameworks)),
    )


def _run(parts: Iterable[Read], skipped: Sequence[Skipped]) -> Run:
    all_parts = list(parts)
    sources = tuple(source for part in all_parts for source in part.sources)
    digest = hashlib.sha256("\n".join(f"{s.id} {s.bytes}" for s in sources).encode("utf-8", "replace")).hexdigest()[:12]
    return Run(
        digest,
        sources,
        tuple(event for part in all_parts for event in part.events),
        tuple(fact for part in all_parts for fact in part.facts),
        (*tree.said(skipped), *(one for part in all_parts for one in part.skipped)),
    )


def is_wanted(file: tree.File) -> bool:
    return file.name.endswith(".py") or configs.is_config(file.name, lambda: _head(file.path))


def _head(path: str) -> str:
    try:
        with open(path, "rb") as raw:
            return raw.read(80).decode("utf-8", "replace")
    except OSError:
        return ""


def _read_all(files: Sequence[tree.File], progress: Progress | None) -> list[Read]:
    cores = min(os.cpu_count() or 1, 8)
    if len(files) < _PARALLEL or cores == 1:
        return [_noted(read_file(file), file, progress) for file in files]
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    mine, others = files[::cores], [file for number, file in enumerate(files) if number % cores]
    try:
        with ProcessPoolExecutor(cores - 1, get_context("fork")) as pool:
            coming = pool.map(read_file, others, chunksize=max(1, len(files) // (cores * 8)))
            own = iter([read_file(file) for file in mine])  # this process has its share, whose trees it keeps
            found = (next(coming if number % cores else own) for number in range(len(files)))
            return [_noted(part, file, progress) for part, file in zip(found, files, strict=True)]
    except OSError:  # no more processes to be had
        return [_noted(read_file(file), file, progress) for file in files]


def _noted(part: Read, file: tree.File, progress: Progress | None) -> Read:
    if progress:
        progress(file.name, file.size)
    return part


def read_file(file: tree.File) -> Read:
    found = Read()
    text = tree.text_of(file, found.skipped)
    if text is not None:
        read_text(file.name, text, found)
    return found


def read_text(name: str, text: str, found: Read) -> None:
    if name.endswith(".py"):
        if not code.RELEVANT.search(text):
            return
        _read_code(name, text, found)
    else:
        _read_config(name, text, found)
    if not found.sources:
        return
    if "paramedic:" in text:
        remarks = list(islice(_allowed(name, text), _MOST_ALLOWED + 1))
        found.events += remarks[:_MOST_ALLOWED]
        if len(remarks) > _MOST_ALLOWED:
            found.skipped.append(Skipped(name, f"has more than {_MOST_ALLOWED:,} remarks that allow something"))


def _read_code(name: str, text: str, found: Read) -> None:
    try:
        read = code.read(name, text)
    except Broken as error:
        found.skipped.append(Skipped(name, f"line {error.line}: {error.why}"))
        return
    found.sources.append(_source(name, "code", text))
    found.events += read.events
    found.facts += configs.facts_of(name, read.sections)
    if read.cut:
        found.skipped.append(Skipped(name, read.cut))


def _read_config(name: str, text: str, found: Read) -> None:
    try:
        sections, problems = configs.sections_of(name, text)
    except Broken as error:
        reason = configs.skipped_or_broken(name, text, error)
        if isinstance(reason, Skipped):
            found.skipped.append(reason)
            return
        sections, problems = [], [reason]
    if sections or problems:
        kinds = list(dict.fromkeys(section.kind for section in sections)) or ["config"]
        found.sources.append(_source(name, kinds[0], text))
        found.facts += configs.facts_of(name, sections)
        found.events += configs.events_of(name, problems)


def _source(name: str, kind: str, text: str) -> Source:
    return Source(name, kind, lines=text.count("\n") + 1, bytes=len(text))


def _allowed(name: str, text: str) -> Iterable[Event]:
    line, counted = 1, 0
    for number, found in enumerate(_ALLOW.finditer(text)):
        line, counted = line + text.count("\n", counted, found.start()), found.start()
        alone = not text[text.rfind("\n", 0, found.start()) + 1 : found.start()].strip()
        fields = {
            "rules": re.findall(r"[A-Z]+\d{3}", found[2]),
            "reason": redact(found[3].removesuffix("*/").removesuffix("-->").strip()[:200]),
            "lines": [] if found[1] == "allow-file" else [line, line + 1] if alone else [line],
        }
        yield Event(name, number, "allowed", redact(found[0][:200]), line, fields=fields)

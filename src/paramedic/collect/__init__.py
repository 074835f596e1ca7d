"""Files and machines → one Run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace

from paramedic.collect.elastic import read_error_file
from paramedic.collect.identity import frameworks_in, world_size
from paramedic.collect.inputs import Input, open_inputs
from paramedic.collect.layouts import place_of
from paramedic.collect.logs import LITERALS, BinaryInput, LogRead, read_log
from paramedic.model import Event, Fact, Run, Skipped, Source
from paramedic.prefilter import Prefilter
from paramedic.redact import redact

__all__ = ["LITERALS", "collect"]

Progress = Callable[[str, int], None]
"""Called with each source's name and its size in bytes once it has been read."""

_MAX_ERROR_FILE = 4 << 20


def collect(paths: Iterable[str], prefilter: Prefilter, progress: Progress | None = None) -> Run:
    """Reads logs, folders, archives and standard input into one Run."""
    sources: list[Source] = []
    events: list[Event] = []
    facts: list[Fact] = []
    skipped: list[Skipped] = []
    for item in open_inputs(paths, skipped):
        read = _read(item, prefilter)
        skipped += read.skipped
        if read.source.lines:
            sources.append(read.source)
            events += read.events
            facts += read.facts
        if progress:
            progress(item.name, read.source.bytes)
    return Run(
        id=_run_id(sources, events),
        sources=tuple(sources),
        events=tuple(events),
        facts=tuple(facts),
        skipped=tuple(skipped),
        world_size=world_size(sources, facts),
        frameworks=frameworks_in(events, facts),
    )


def _read(item: Input, prefilter: Prefilter) -> LogRead:
    place = place_of(item.name)
    source = Source(item.name, "log", place.rank, None, place.attempt)
    if item.name.endswith("error.json"):
        return _read_error_file(item, replace(source, kind="error-file"))
    try:
        read = read_log(item.stream, source, prefilter)
    except BinaryInput as why:
        return LogRead(source, skipped=[Skipped(item.name, str(why))])
    if not read.source.lines and not read.skipped and source.rank is None:
        read.skipped.append(Skipped(item.name, "empty"))
    return read


def _read_error_file(item: Input, source: Source) -> LogRead:
    data = item.stream.read(_MAX_ERROR_FILE)
    error = read_error_file(data)
    if error is None:
        return LogRead(source, skipped=[Skipped(item.name, "not an error file as torchrun writes it")])
    event = Event(
        source=source.id,
        seq=1,
        kind="traceback",
        text=redact(error.message)[:16_000],
        line=1,
        rank=source.rank,
        attempt=source.attempt,
        utc_ns=error.epoch_seconds * 1_000_000_000 if error.epoch_seconds else None,
        uncertainty_ns=1_000_000_000,
        fields={"frames": _frames(error.callstack), "types": [error.message.split(":")[0]], "uncaught": True},
    )
    return LogRead(replace(source, lines=1, bytes=len(data)), [event])


def _frames(callstack: str) -> list[str]:
    from paramedic.collect.tracebacks import Traceback

    trace = Traceback(1, uncaught=True)
    for number, line in enumerate(callstack.split("\n")[1:], 1):
        trace.feed(line, number, by_torch=False)
    return [redact(frame) for frame in trace.frames]


def _run_id(sources: Iterable[Source], events: Iterable[Event]) -> str:
    """The same input gives the same id."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(f"{source.id}\0{source.bytes}\0{source.lines}\0".encode("utf-8", "replace"))
    for event in events:
        digest.update(f"{event.kind}\0{event.line}\0{event.text}\0".encode("utf-8", "replace"))
    return digest.hexdigest()[:12]

"""DistributedDataParallel's flat buffers: how large they are, and gradients that live in them. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from paramedic.memory.allocator import FREED, Event
from paramedic.memory.measure import owners_of

FIRST, LIMIT = 1 << 20, 25 << 20
"""Bytes from which a bucket is full, by torch's defaults."""


def bucket_sizes(parameters: list[tuple[str, int]]) -> Iterator[int]:
    """(type, bytes) of each parameter → buckets, from the last parameter to the first; together all gradients."""
    open_: dict[str, int] = {}
    made: set[str] = set()
    for dtype, size in reversed(parameters):
        open_[dtype] = open_.get(dtype, 0) + size
        if open_[dtype] >= (LIMIT if dtype in made else FIRST):
            made.add(dtype)
            yield open_.pop(dtype)
    yield from open_.values()


def into_buckets(trace: Any) -> Any:
    """The same trace with `gradient_as_bucket_view=True`: a gradient is gone once it has been copied."""
    owners = owners_of(trace)
    events: list[Event] = []
    places: list[int] = []
    due: int | None = None
    for event in trace.events:
        places.append(len(events))
        gradient = owners[event[0]] == "gradients"
        if gradient and event[1] == FREED:
            continue
        if due is not None and event[1] != FREED:
            events.append((due, FREED, 0, 0))
            due = None
        events.append(event)
        due = event[0] if gradient else due
    places.append(len(events))
    steps = [places[index] for index in trace.steps]
    phases = [(places[index], step, phase) for index, step, phase in trace.phases]
    return replace(trace, events=events, steps=steps, phases=phases, lines={})

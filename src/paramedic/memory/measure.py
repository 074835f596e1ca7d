"""From a trace to numbers: peaks, who owned what at the peak, memory over the step, would it fit. No torch here."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Container, Sequence
from typing import Any

from paramedic.memory.allocator import FREED, Allocator, Event, OutOfMemory, Replay, Settings

REPEATS = 3
"""The steady step is replayed until the allocator has settled."""
POINTS = 240
OWNERS = 12
KINDS = (
    "parameters", "gradients", "optimizer", "activations", "temporaries", "communication",
)  # fmt: skip


def measured(trace: Any, settings: Settings, capacities: Sequence[int]) -> dict[str, Any]:
    build, steady = trace.events[: trace.steps[0]], trace.events[trace.steps[1] : trace.steps[2]]
    first = trace.events[trace.steps[0] : trace.steps[1]]
    allocator = Allocator(settings=settings)
    replay = Replay(allocator)
    replay.run(build)
    replay.run(first)
    first_step = {"allocated": allocator.peak_allocated, "reserved": allocator.peak_reserved}
    for _ in range(REPEATS):
        allocator.reset_peaks()
        at = replay.run(steady)
    kinds = owners_of(trace)
    at += trace.steps[1]
    return {
        "allocated": allocator.peak_allocated,
        "reserved": allocator.peak_reserved,
        "first_step": first_step,
        "phases": _phase_peaks(trace),
        "at": _where(trace, at),
        "at_event": at,
        "breakdown": _breakdown(trace, kinds, at, allocator.peak_allocated),
        "owners": _owners(trace, kinds, at),
        "series": _series(trace, kinds),
        "capacity": [_fits((build, first, steady, steady), settings, one, trace.optional) for one in capacities],
        "notes": list(trace.notes),
        "events": len(trace.events),
    }


def _phase_peaks(trace: Any) -> dict[str, int]:
    """The most that is held in each phase of the steady step: each grows evenly with layers and batch."""
    bounds = [(index, phase) for index, step, phase in trace.phases if step == 2]
    peaks: dict[str, int] = {}
    sizes: dict[int, int] = {}
    held, turn, phase = 0, 0, ""
    for index, (key, size, _, _) in enumerate(trace.events[: trace.steps[2]]):
        while turn < len(bounds) and index >= bounds[turn][0]:
            phase = bounds[turn][1]
            peaks[phase] = max(peaks.get(phase, 0), held)
            turn += 1
        held += -sizes.pop(key, 0) if size == FREED else size
        if size != FREED:
            sizes[key] = size
        if phase:
            peaks[phase] = max(peaks.get(phase, 0), held)
    return peaks


def owners_of(trace: Any) -> dict[int, str]:
    """Storage → kind, by the phase in which it was born and the one in which it died."""
    starts = [index for index, _, _ in trace.phases]
    died: dict[int, tuple[int, str]] = {}
    born: dict[int, Event] = {}
    for index, event in enumerate(trace.events):
        if event[1] == FREED:
            _, step, phase = trace.phases[max(bisect_right(starts, index) - 1, 0)] if starts else (0, 0, "build")
            died[event[0]] = (step, phase)
        else:
            born[event[0]] = event
    return {key: trace.kinds.get(key) or _kind(trace, event, died.get(key)) for key, event in born.items()}


def _kind(trace: Any, event: Event, death: tuple[int, str] | None) -> str:
    moment = trace.moments[event[3]]
    kept = death is None or death[1] in ("optimizer", "zero_grad")
    if event[2] and moment.phase == "backward" and kept:  # FSDP's share of a gradient, from the stream that sums it up
        return "gradients"
    if event[2] or moment.operation == "resize_":
        return "communication"
    if moment.phase == "build":
        return "parameters"
    lasts = death != (moment.step, moment.phase)
    if not lasts:
        return "temporaries"
    kinds = {"forward": "activations", "backward": "gradients", "optimizer": "optimizer"}
    return kinds.get(moment.phase, "temporaries")


def _live_at(events: Sequence[Event], at: int) -> dict[int, Event]:
    live: dict[int, Event] = {}
    for event in events[: at + 1]:
        if event[1] == FREED:
            live.pop(event[0], None)
        else:
            live[event[0]] = event
    return live


def _breakdown(trace: Any, kinds: dict[int, str], at: int, allocated: int) -> dict[str, int]:
    sizes = dict.fromkeys(KINDS, 0)
    for key, event in _live_at(trace.events, at).items():
        kind = kinds[key]
        sizes[{"inputs": "activations", "workspaces": "temporaries"}.get(kind, kind)] += event[1]
    sizes["rounding"] = max(allocated - sum(sizes.values()), 0)
    return sizes


def _owners(trace: Any, kinds: dict[int, str], at: int) -> list[dict[str, Any]]:
    """The largest holders at the peak, by kind and module."""
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for key, event in _live_at(trace.events, at).items():
        if kinds[key] not in ("parameters", "optimizer"):
            sums[kinds[key], trace.moments[event[3]].module] += event[1]
    largest = sorted(sums.items(), key=lambda item: -item[1])[:OWNERS]
    return [{"kind": kind, "module": module, "bytes": size} for (kind, module), size in largest]


def _where(trace: Any, at: int) -> dict[str, Any]:
    moment = trace.moments[trace.events[at][3]]
    line = trace.lines.get(at)
    return {"phase": moment.phase, "module": moment.module, "operation": moment.operation, "line": line or None}


def _series(trace: Any, kinds: dict[int, str]) -> dict[str, Any]:
    """Bytes of each kind over the steady step: the highest moment of each of about `POINTS` stretches."""
    begin, end = trace.steps[1], trace.steps[2]
    names = (*KINDS, "workspaces", "inputs")
    now = dict.fromkeys(names, 0)
    live: dict[int, tuple[str, int]] = {}
    stretch = max((end - begin) // POINTS, 1)
    points: list[dict[str, Any]] = []
    best: tuple[int, dict[str, int], int] | None = None
    for index, (key, size, _, _) in enumerate(trace.events[:end]):
        if size == FREED:
            kind, was = live.pop(key, ("temporaries", 0))
            now[kind] -= was
        else:
            kind = kinds[key]
            live[key] = (kind, size)
            now[kind] += size
        if index < begin:
            continue
        total = sum(now.values())
        if best is None or total > best[0]:
            best = (total, dict(now), index)
        if (index - begin) % stretch == stretch - 1 or index == end - 1:
            points.append({"event": best[2] - begin, **best[1]})
            best = None
    phases = [
        {"event": max(i - begin, 0), "phase": phase} for i, step, phase in trace.phases if step == 2 and i >= begin
    ]
    return {"points": points, "phases": phases, "events": end - begin}


def _fits(
    parts: Sequence[Sequence[Event]], settings: Settings, capacity: int, optional: Container[int]
) -> dict[str, Any]:
    """What the allocator itself does with so much: it empties its cache before it gives up."""
    allocator = Allocator(max(capacity, 0), settings)
    replay = Replay(allocator, optional)
    try:
        for part in parts:
            replay.run(part)
    except OutOfMemory as failed:
        return {"capacity": capacity, "fits": False, "flushes": allocator.flushes, "request": failed.request}
    return {"capacity": capacity, "fits": True, "flushes": allocator.flushes, "request": None}

"""A torch.cuda.memory snapshot at its highest moment: which blocks were alive, and the stack that took each.

`device_traces` is the history. Played forward from what must have been there at its beginning, it gives the peak; where
nothing was recorded, what is alive at the end is all there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paramedic.memory.places import rounded

Frames = Any


@dataclass(frozen=True, slots=True)
class Held:
    size: int
    frames: Frames
    before: bool = False
    """Taken before the recording began, and given back since: nobody knows where."""


@dataclass(frozen=True, slots=True)
class Peak:
    allocated: int
    reserved: int
    blocks: list[Held]
    recorded: bool
    """The history was there; else this is the end of the run."""


def peak_of(snapshot: dict[str, Any]) -> Peak:
    segments = _of_one_device(snapshot["segments"])
    device = int(segments[0].get("device", 0)) if segments else 0
    traces = snapshot.get("device_traces")
    trace = traces[device] if isinstance(traces, list) and device < len(traces) else []
    end = _alive(segments)
    reserved = sum(int(one["total_size"]) for one in segments)
    blocks = _highest(end, trace)
    return Peak(sum(one.size for one in blocks), _most_reserved(reserved, trace), blocks, bool(trace))


def _of_one_device(segments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A rank trains on one card; what lies on another is small."""
    sums: dict[int, int] = {}
    for one in segments:
        device = int(one.get("device", 0))
        sums[device] = sums.get(device, 0) + int(one["total_size"])
    most = max(sums, key=lambda device: sums[device], default=0)
    return [one for one in segments if int(one.get("device", 0)) == most]


def _alive(segments: list[dict[str, Any]]) -> dict[int, Held]:
    found: dict[int, Held] = {}
    for segment in segments:
        place = int(segment.get("address", 0))
        for block in segment.get("blocks", ()):
            size = int(block["size"])
            if block.get("state") == "active_allocated":
                found[int(block.get("address", place))] = Held(size, block.get("frames") or ())
            place += size
    return found


def _highest(end: dict[int, Held], trace: list[dict[str, Any]]) -> list[Held]:
    live = _at_start(end, trace)
    now = best = sum(one.size for one in live.values())
    at = -1
    for index, event in enumerate(trace):
        now += _apply(event, live)
        if now > best:
            best, at = now, index
    live = _at_start(end, trace)
    for event in trace[: at + 1]:
        _apply(event, live)
    return list(live.values())


def _at_start(end: dict[int, Held], trace: list[dict[str, Any]]) -> dict[int, Held]:
    """Alive at the end without having been taken since; or given back without having been taken since."""
    first: dict[int, Held] = {}
    taken: set[int] = set()
    for event in trace:
        address, action = event.get("addr"), event.get("action")
        if not isinstance(address, int):
            continue
        if action == "alloc":
            taken.add(address)
        elif action in ("free_requested", "free_completed") and address not in taken and address not in first:
            first[address] = Held(rounded(int(event.get("size", 0))), event.get("frames") or (), before=True)
    return {address: held for address, held in end.items() if address not in taken and address not in first} | first


def _apply(event: dict[str, Any], live: dict[int, Held]) -> int:
    """Bytes more than before. What a free asks for counts as given back at once, as torch's own count has it."""
    address, action = event.get("addr"), event.get("action")
    if not isinstance(address, int):
        return 0
    if action == "alloc":
        size = rounded(int(event.get("size", 0)))
        live[address] = Held(size, event.get("frames") or ())
        return size
    if action in ("free_requested", "free_completed"):
        held = live.pop(address, None)
        return -held.size if held is not None else 0
    return 0


def _most_reserved(end: int, trace: list[dict[str, Any]]) -> int:
    signs = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    best = now = end
    for event in reversed(trace):
        now -= signs.get(str(event.get("action")), 0) * int(event.get("size", 0))
        best = max(best, now)
    return best

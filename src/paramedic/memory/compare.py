"""An estimate beside what a real run measured: a memory snapshot, or the numbers of `torch.cuda.memory_stats`."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paramedic import __version__
from paramedic.collect.plain_pickle import NotPlain, load
from paramedic.errors import ParamedicError
from paramedic.memory.document import breakdown
from paramedic.memory.estimate import SCHEMA_VERSION, Estimate
from paramedic.memory.show import size

LARGEST = 2 << 30
_STATS = {
    "allocated": ("allocated_bytes.all.peak", "max_memory_allocated", "peak_allocated_bytes"),
    "reserved": ("reserved_bytes.all.peak", "max_memory_reserved", "peak_reserved_bytes"),
}


@dataclass
class Measured:
    source: str
    allocated: int | None
    reserved: int | None
    owners: dict[str, int] = field(default_factory=dict)
    """Bytes alive in the snapshot by the user's line, where stacks were recorded."""


def read(path: str) -> Measured:
    try:
        with Path(path).open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise ParamedicError(f"{path}: {error.strerror or error}") from None
    if len(data) > LARGEST:
        raise ParamedicError(f"{path}: larger than {LARGEST >> 30} GiB")
    return _stats(path, data) if data.lstrip()[:1] == b"{" else _snapshot(path, data)


def _stats(path: str, data: bytes) -> Measured:
    try:
        stats = json.loads(data)
    except (ValueError, RecursionError):
        raise ParamedicError(f"{path}: not JSON, though it begins like it") from None
    found = {
        name: next((stats[k] for k in keys if isinstance(stats.get(k), int)), None) for name, keys in _STATS.items()
    }
    if found["allocated"] is None and found["reserved"] is None:
        raise ParamedicError(f"{path}: has neither {_STATS['allocated'][0]} nor {_STATS['reserved'][0]}; "
                             "write json.dump(torch.cuda.memory_stats(), file)")  # fmt: skip
    return Measured(path, found["allocated"], found["reserved"])


def _snapshot(path: str, data: bytes) -> Measured:
    try:
        snapshot = load(data)
    except NotPlain as why:
        raise ParamedicError(f"{path}: {why}") from None
    segments = snapshot.get("segments") if isinstance(snapshot, dict) else None
    if not isinstance(segments, list):
        raise ParamedicError(f"{path}: no memory snapshot; make it with torch.cuda.memory._dump_snapshot(file)")
    try:
        return _of_segments(path, segments, snapshot.get("device_traces"))
    except (TypeError, KeyError, AttributeError, ValueError):
        raise ParamedicError(f"{path}: a memory snapshot of a shape that is not known here") from None


def _of_segments(path: str, segments: list[dict[str, Any]], traces: Any) -> Measured:
    reserved = sum(int(one["total_size"]) for one in segments)
    allocated = sum(int(one["allocated_size"]) for one in segments)
    owners: dict[str, int] = defaultdict(int)
    for segment in segments:
        for block in segment.get("blocks", ()):
            if block.get("state") == "active_allocated":
                owners[_line(block.get("frames") or ())] += int(block.get("requested_size", block["size"]))
    return Measured(
        path, max(allocated, _peak(traces, allocated)), max(reserved, _peak_reserved(traces, reserved)), owners
    )


def _peak(traces: Any, end: int) -> int:
    """The history is replayed backwards from what was allocated at its end."""
    return _highest(traces, end, {"alloc": 1, "free_completed": -1})


def _peak_reserved(traces: Any, end: int) -> int:
    return _highest(traces, end, {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1})


def _highest(traces: Any, end: int, signs: dict[str, int]) -> int:
    best = now = end
    for trace in traces if isinstance(traces, list) else ():
        for event in reversed(trace):
            now -= signs.get(event.get("action"), 0) * int(event.get("size", 0))
            best = max(best, now)
    return best


def _line(frames: Any) -> str:
    for frame in frames:
        name = str(frame.get("filename", ""))
        if name.startswith("/") and "-packages/" not in name and "/lib/python" not in name:
            return f"{name}:{frame.get('line')}"
    return "no stack recorded" if not frames else "torch and libraries"


def compare(measured: Measured, made: Estimate) -> dict[str, Any]:
    rows = []
    for name, one in (("allocated", made.allocated), ("reserved", made.reserved)):
        truth = getattr(measured, name)
        if truth:
            rows.append(
                {
                    "what": name,
                    "measured_bytes": truth,
                    "estimated_bytes": one.mid,
                    "difference": round(one.mid / truth - 1, 4),
                    "within": one.low <= truth <= one.high,
                }
            )
    largest = sorted(measured.owners.items(), key=lambda item: -item[1])[:12]
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "paramedic", "version": __version__},
        "measured": measured.source,
        "rows": rows,
        "alive_in_snapshot": [{"line": line, "bytes": count} for line, count in largest],
        "estimated": {"breakdown": breakdown(made), "owners": made.result["owners"], "at": made.result["at"]},
    }


def text(found: dict[str, Any]) -> str:
    lines = []
    for row in found["rows"]:
        lines.append(
            f"{row['what']:10} measured {size(row['measured_bytes']):>11}   "
            f"estimated {size(row['estimated_bytes']):>11}   {row['difference']:+.1%}"
            f"{'' if row['within'] else '   outside the range'}"
        )
    for row in found["alive_in_snapshot"]:
        lines.append(f"  alive {size(row['bytes']):>11}   {row['line']}")
    lines.append("estimated at the peak:")
    lines += [f"  {name:14}{size(count):>12}" for name, count in found["estimated"]["breakdown"].items() if count]
    return "\n".join(lines) + "\n"

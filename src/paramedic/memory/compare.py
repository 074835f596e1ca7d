"""An estimate beside what a real run measured: a memory snapshot, or the numbers of `torch.cuda.memory_stats`.

A snapshot's highest moment (`snapshot`) is put beside the estimate's, by where memory was taken (`places`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paramedic import __version__
from paramedic.collect.plain_pickle import NotPlain, load
from paramedic.errors import ParamedicError
from paramedic.memory.document import breakdown
from paramedic.memory.estimate import SCHEMA_VERSION, Estimate
from paramedic.memory.places import BEFORE, Forward, Lines, names_of
from paramedic.memory.show import size
from paramedic.memory.snapshot import Peak, peak_of
from paramedic.report.escape import printable

LARGEST = 2 << 30
OWNERS = 12
PLACES = 16
LINES = 8
_STATS = {
    "allocated": ("allocated_bytes.all.peak", "max_memory_allocated", "peak_allocated_bytes"),
    "reserved": ("reserved_bytes.all.peak", "max_memory_reserved", "peak_reserved_bytes"),
}


@dataclass
class Measured:
    source: str
    allocated: int | None
    reserved: int | None
    peak: Peak | None = None
    """Of a snapshot; numbers alone have none."""


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
        peak = peak_of(snapshot)
    except (TypeError, KeyError, AttributeError, ValueError, IndexError):
        raise ParamedicError(f"{path}: a memory snapshot of a shape that is not known here") from None
    return Measured(path, peak.allocated, peak.reserved, peak)


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
    forwards = [Forward(**one) for one in made.result.get("forwards", ())]
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "paramedic", "version": __version__},
        "measured": measured.source,
        "at_peak": measured.peak.recorded if measured.peak else None,
        "rows": rows,
        "places": _places(measured.peak, made, forwards) if measured.peak else [],
        "lines": _lines(measured.peak) if measured.peak else [],
        "estimated": {
            "breakdown": breakdown(made),
            "owners": made.result["owners"][:OWNERS],
            "at": made.result["at"],
        },
    }


def _places(peak: Peak, made: Estimate, forwards: list[Forward]) -> list[dict[str, Any]]:
    """What was alive at both peaks, by where it was taken; where they part most comes first."""
    lines, names = Lines(forwards), names_of(forwards)
    really: dict[str, int] = defaultdict(int)
    for block in peak.blocks:
        really[BEFORE if block.before else lines.place(block.frames)] += block.size
    ours: dict[str, int] = made.result.get("places", {})
    rows = [
        {
            "place": place,
            "modules": names.get(place),
            "measured_bytes": really.get(place, 0),
            "estimated_bytes": ours.get(place, 0),
        }
        for place in {**really, **ours}
    ]
    return sorted(rows, key=lambda row: (-abs(row["measured_bytes"] - row["estimated_bytes"]), str(row["place"])))


def _lines(peak: Peak) -> list[dict[str, Any]]:
    """The user's own lines that held the most."""
    sums: dict[str, int] = defaultdict(int)
    for block in peak.blocks:
        line = _line(block.frames)
        if line:
            sums[line] += block.size
    return [{"line": line, "bytes": count} for line, count in sorted(sums.items(), key=lambda item: -item[1])[:LINES]]


def _line(frames: Any) -> str:
    for frame in frames:
        name = str(frame.get("filename", ""))
        if name.endswith(".py") and "-packages/" not in name and "/lib/python" not in name:
            return f"{name}:{frame.get('line')}"
    return ""


def text(found: dict[str, Any]) -> str:
    return "\n".join(printable(line) for line in _words(found)) + "\n"


def _words(found: dict[str, Any]) -> Iterator[str]:
    for row in found["rows"]:
        yield (
            f"{row['what']:10} measured {size(row['measured_bytes']):>11}   "
            f"estimated {size(row['estimated_bytes']):>11}   {row['difference']:+.1%}"
            f"{'' if row['within'] else '   outside the range'}"
        )
    if found["places"]:
        yield ""
        when = (
            "at the peak" if found["at_peak"] else "alive in the snapshot, which has no history; estimate at its peak"
        )
        yield f"where it was taken ({when}), the largest difference first:"
        yield f"  {'measured':>11} {'estimated':>11} {'more':>12}"
        yield from _table(found["places"])
    if found["lines"]:
        yield ""
        yield "your lines that held the most:"
        yield from (f"  {size(row['bytes']):>11}   {row['line']}" for row in found["lines"])
    if not found["places"]:
        yield "estimated at the peak:"
        parts = found["estimated"]["breakdown"].items()
        yield from (f"  {name:14}{size(count):>12}" for name, count in parts if count)


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows[:PLACES]:
        really, ours = row["measured_bytes"], row["estimated_bytes"]
        of = f" ({row['modules']})" if row["modules"] else ""
        yield f"  {size(really):>11} {size(ours):>11} {_signed(ours - really):>12}   {row['place']}{of}"
    rest = rows[PLACES:]
    if rest:
        really, ours = (sum(row[f"{name}_bytes"] for row in rest) for name in ("measured", "estimated"))
        yield f"  {size(really):>11} {size(ours):>11} {_signed(ours - really):>12}   {len(rest)} more places"


def _signed(count: int) -> str:
    return f"{'+' if count >= 0 else '-'}{size(abs(count))}"

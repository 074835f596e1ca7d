"""Each rank's pulse: what its agent last said joined with what the kernel says of its process, and how long nothing
has moved."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from paramedic.watch.process import look as look_at

Condition = Literal["starting", "going", "waiting", "idle", "busy", "frozen", "stopped", "gone", "ended", "failed"]

STILL = 2.0
"""Seconds without a sign of progress after which a rank counts as standing."""
_STALE = 4.0  # seconds without a beat: Python's lock is held, or the process does not run
_BUSY = 0.3  # of a processor, wanted
_STARVED = 0.2  # of a processor, got, while nearly a whole one was wanted: it cannot beat, and is not stuck
_TRAFFIC = 1 << 14  # bytes over its connections
_INPUT = 1 << 18  # bytes a second of files
_MAX_STATE = 4 << 20
_CHILDREN = 64
_LATELY = 5.0


@dataclass(slots=True)
class Process:
    """As /proc shows it. `letter` is empty when it is gone."""

    letter: str = ""
    started: float = 0.0
    cpu_s: float = 0.0
    wanted_s: float = 0.0
    """Processor time of its main thread and its children, with the time for which they waited to get any."""
    io: int = 0
    wchan: str = ""


@dataclass(slots=True)
class Pulse:
    """One rank, as of the last look."""

    rank: int
    state: Mapping[str, Any] = field(default_factory=dict)
    process: Process | None = None
    condition: Condition = "starting"
    moved: float = 0.0
    """When, by the watcher's clock, it last showed progress."""
    wanted: float = 0.0
    """Of a processor, in the last seconds."""
    demands: list[tuple[float, float]] = field(default_factory=list)
    beat: float = 0.0
    at_beat: tuple[float, float] = (0.0, 0.0)
    """Processor time that it had got, and wanted, by its last beat."""
    marks: tuple[float, ...] = ()
    looked: float = 0.0
    flowing: bool = False

    @property
    def told(self) -> dict[str, Any]:
        """For whoever reads the job's folder."""
        now = time.monotonic()
        return {
            "condition": self.condition,
            "phase": self.phase,
            "process": self.process.letter if self.process else None,
            "wanted": round(self.wanted, 2),
            "beat_age_s": round(now - self.beat, 1),
            "still_s": round(now - self.moved, 1),
        }

    @property
    def steps(self) -> int:
        return int(self.state.get("steps") or 0)

    @property
    def phase(self) -> str:
        return str((self.state.get("now") or {}).get("phase") or "")

    @property
    def said(self) -> str:
        return str((self.state.get("now") or {}).get("said") or "")


def read_states(folder: str) -> dict[int, dict[str, Any]]:
    """What the agents last wrote; a file that is not whole, or not ours, is as if it were not there."""
    found: dict[int, dict[str, Any]] = {}
    try:
        names = os.listdir(os.path.join(folder, "ranks"))
    except OSError:
        return found
    for name in names:
        if not name.endswith(".watch.json"):
            continue
        try:
            with open(os.path.join(folder, "ranks", name), "rb") as file:
                state = json.loads(file.read(_MAX_STATE))
            found[int(state["rank"])] = state
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def process(pid: int) -> Process:
    found = look_at(pid)
    if found is None or found.state in "ZX":
        return Process()
    wanted = sum(_wanted(one) for one in (pid, *_children(pid)))
    return Process(found.state, found.started, found.cpu, wanted or found.cpu, _io(pid), found.wchan)


def _wanted(pid: int) -> float:
    """On a crowded machine who computes gets little: what it waits for counts as well."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            ran, waited = file.read().split()[:2]
        return (int(ran) + int(waited)) / 1e9
    except (OSError, ValueError):
        return 0.0


def _children(pid: int) -> list[int]:
    """Of its main thread: the workers of a data loader."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(word) for word in file.read().split()[:_CHILDREN]]
    except (OSError, ValueError):
        return []


def _io(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith((b"rchar", b"wchar")))
    except (OSError, ValueError):
        return 0


def look(pulse: Pulse, state: Mapping[str, Any], host: str, now: float | None = None) -> None:
    """Brings a rank's pulse up to date."""
    now = time.monotonic() if now is None else now
    before, was = pulse.marks, pulse.process
    fresh = state.get("beats") != pulse.state.get("beats") or state.get("pid") != pulse.state.get("pid")
    pulse.state = state
    marks = (*(float(state.get(name) or 0) for name in ("ticks", "steps", "calls", "pid")), _traffic(state))
    moved = marks[:4] != before[:4] or marks[4] - before[4] > _TRAFFIC
    here = state.get("host") == host and isinstance(state.get("pid"), int)
    pulse.process = process(state["pid"]) if here else None
    if fresh:
        pulse.beat, pulse.at_beat = now, _got_and_wanted(pulse)
    if moved:
        pulse.moved, pulse.marks = now, marks
    pulse.wanted = _wanted_lately(pulse, now)
    span = now - pulse.looked
    if pulse.process and was and span > 0.2:
        pulse.flowing = (pulse.process.io - was.io) / span > _INPUT
    pulse.looked = now
    pulse.condition = _condition(pulse, now)


def _wanted_lately(pulse: Pulse, now: float) -> float:
    pulse.demands = [one for one in pulse.demands if one[0] > now - _LATELY][-32:]
    pulse.demands.append((now, pulse.process.wanted_s if pulse.process else 0.0))
    (first, before), (_, wanted) = pulse.demands[0], pulse.demands[-1]
    return max(wanted - before, 0.0) / max(now - first, 1.0)


def _got_and_wanted(pulse: Pulse) -> tuple[float, float]:
    return (pulse.process.cpu_s, pulse.process.wanted_s) if pulse.process else (0.0, 0.0)


def _is_starved(pulse: Pulse, now: float) -> bool:
    """Since its last beat it could have run nearly all the time, and hardly did: others have the processors."""
    (got, wanted), (got_before, wanted_before) = _got_and_wanted(pulse), pulse.at_beat
    since = max(now - pulse.beat, 1e-9)
    return (wanted - wanted_before) / since > 0.8 and (got - got_before) / since < _STARVED


def _traffic(state: Mapping[str, Any]) -> float:
    """A large message on a slow link is progress, too."""
    found = state.get("connections")
    known = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return float(sum(int(one.get("sent") or 0) + int(one.get("received") or 0) for one in known))


def _condition(pulse: Pulse, now: float) -> Condition:
    stage = pulse.state.get("stage")
    if stage in ("ended", "failed"):
        return "ended" if stage == "ended" else "failed"
    if pulse.process is not None and pulse.process.letter in ("", "T", "t"):
        return "stopped" if pulse.process.letter else "gone"
    computes = pulse.wanted >= _BUSY
    if now - pulse.beat > _STALE:
        importing = stage == "starting" and computes  # a large library holds the interpreter for as long as it loads
        return "busy" if importing or _is_starved(pulse, now) else "frozen"
    if now - pulse.moved < STILL:
        return "going"
    if pulse.phase == "collective" or (pulse.phase == "backward" and not computes):
        return "waiting"
    return "busy" if computes or pulse.flowing else "idle"

"""What the operating system said of a rank's process: `rank-N.process.json`, as `paramedic attach` writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from paramedic.collect.identity import MAX_WORLD_SIZE
from paramedic.redact import clipped

NAME = ".process.json"
MAX_BYTES = 1 << 20
GONE = "gone"
_STATES = {
    "R": "runs", "S": "waits", "D": "waits for a disk or a device", "T": "is stopped", "t": "is stopped by a debugger",
    "Z": "has ended", "X": "has ended", "I": "idles", GONE: "is gone",
}  # fmt: skip
_MAX_PID = 1 << 32


@dataclass(frozen=True, slots=True)
class ProcessState:
    """`state` is the letter that /proc shows, or "gone" where the rank's process is missing."""

    rank: int
    state: str
    pid: int | None = None
    host: str = ""
    world_size: int | None = None
    wchan: str = ""
    cpu: float = 0.0
    """Seconds of CPU time so far."""
    used: float | None = None
    """The share of one core that it used between two looks."""
    started: float = 0.0
    command: str = ""

    def written(self) -> bytes:
        about = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps({"paramedic": "process", "version": 1, **about}, indent=1).encode()

    @property
    def says(self) -> str:
        who = f"the process of rank {self.rank}" + (f" (pid {self.pid})" if self.pid else "")
        where = f", in {self.wchan}" if self.wchan not in ("", "0") else ""
        used = "" if self.used is None else f", using {self.used:.0%} of a core"
        return f"{who} {_STATES[self.state]}{where}{used}"

    @property
    def as_fields(self) -> dict[str, Any]:
        return {
            "state": self.state, "wchan": self.wchan, "cpu": self.cpu, "used": self.used, "started": self.started,
            **({} if self.pid is None else {"pid": self.pid}),
        }  # fmt: skip


def read_process(data: bytes) -> ProcessState | None:
    """None for what is no such file; every value is checked, for anybody may have written it."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or said.get("paramedic") != "process":
        return None
    rank, state = _whole(said, "rank", MAX_WORLD_SIZE), said.get("state")
    if rank is None or not isinstance(state, str) or state not in _STATES:
        return None
    return ProcessState(
        rank=rank,
        state=state,
        pid=_whole(said, "pid", _MAX_PID),
        host=_text(said, "host", 253),
        world_size=_whole(said, "world_size", MAX_WORLD_SIZE) or None,
        wchan=_text(said, "wchan", 80),
        cpu=_number(said, "cpu") or 0.0,
        used=_number(said, "used"),
        started=_number(said, "started") or 0.0,
        command=_text(said, "command", 400),
    )


def _whole(said: Mapping[str, Any], name: str, most: int) -> int | None:
    value = said.get(name)
    return value if type(value) is int and 0 <= value <= most else None


def _number(said: Mapping[str, Any], name: str) -> float | None:
    value = said.get(name)
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15
    return float(value or 0) if known else None


def _text(said: Mapping[str, Any], name: str, most: int) -> str:
    value = said.get(name)
    return clipped(" ".join(value[: 4 * most].split()), most) if isinstance(value, str) else ""

"""torchrun's own records: the failure table on its console, the agent's lines, and `error.json`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

LITERALS = ("Root Cause (first observed failure)", "Failures:", "failed (exitcode: ")
TABLE_STARTS = ("Failures:", "Root Cause (first observed failure)")
MAX_LINES = 4_000

_ENTRY = re.compile(r"^\s*\[(\d+)\]:\s*$")
_FIELD = re.compile(r"^\s*(time|host|rank|exitcode|error_file|traceback)\s*: ?(.*)$")
_RANK = re.compile(r"^(\d+) \(local_rank: (\d+)\)")
_EXIT = re.compile(r"^(-?\d+)\s+\(pid: (\d+)\)")
_AGENT = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")


@dataclass(slots=True)
class Failure:
    """One row: which rank ended how, as the agent saw it."""

    rank: int | None
    local_rank: int
    exitcode: int
    pid: int
    host: str = ""
    time: str = ""
    traceback: str = ""
    first_observed: bool = False
    line: int = 0


@dataclass(slots=True)
class FailureTable:
    """Collects rows from the line `Failures:` to the closing rule of equals signs."""

    rows: list[Failure] = field(default_factory=list)
    closed: bool = False
    _entry: dict[str, str] = field(default_factory=dict)
    _entry_line: int = 0
    _root: bool = False
    _last: str = ""
    _lines: int = 0

    def feed(self, text: str, number: int) -> None:
        self._lines += 1
        if text.startswith("=====") or self._lines > MAX_LINES:
            self._flush()
            self.closed = True
        elif "Root Cause (first observed failure)" in text:
            self._flush()
            self._root = True
        elif _ENTRY.match(text):
            self._flush()
            self._entry_line = number
        elif (found := _FIELD.match(text)) and not (self._last == "traceback" and found[1] != "traceback"):
            self._last = found[1]
            self._entry[found[1]] = found[2].strip()
        elif self._last == "traceback" and not text.startswith("-----"):
            self._entry["traceback"] = f"{self._entry['traceback']}\n{text}"[:16_000]

    def _flush(self) -> None:
        entry, self._entry, self._last = self._entry, {}, ""
        rank, code = _RANK.match(entry.get("rank", "")), _EXIT.match(entry.get("exitcode", ""))
        if rank and code:
            self.rows.append(
                Failure(
                    rank=int(rank[1]),
                    local_rank=int(rank[2]),
                    exitcode=int(code[1]),
                    pid=int(code[2]),
                    host=entry.get("host", ""),
                    time=entry.get("time", ""),
                    traceback=entry.get("traceback", ""),
                    first_observed=self._root,
                    line=self._entry_line,
                )
            )


def agent_line(text: str, number: int) -> Failure | None:
    """`failed (exitcode: -9) local_rank: 2 (pid: 4711) of binary: …`: all there is when the table was lost."""
    if (found := _AGENT.search(text)) is None:
        return None
    return Failure(None, int(found[2]), int(found[1]), int(found[3]), line=number)


@dataclass(frozen=True, slots=True)
class ErrorFile:
    message: str
    callstack: str
    epoch_seconds: int | None


def read_error_file(data: bytes) -> ErrorFile | None:
    """`error.json` as `@record` writes it; None when it is something else."""
    try:
        document = json.loads(data)
        message: Any = document["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(message, dict):
        return ErrorFile(str(message), "", None)
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    stamp = str(extra.get("timestamp", ""))
    return ErrorFile(
        str(message.get("message", "")),
        str(extra.get("py_callstack", "")),
        int(stamp) if stamp.isdigit() and len(stamp) < 12 else None,
    )

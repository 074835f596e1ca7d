"""torchrun's own records: the failure table on its console, the agent's lines, and `error.json`."""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any

LITERALS = ("Root Cause (first observed failure)", "Failures:", "failed (exitcode: ")
MAX_ROWS = 4_096
_FOREIGN_ALLOWED = 200
_MAX_TRACEBACK = 400  # lines of a row's traceback, the last ones

_ROOT = "Root Cause (first observed failure)"
_ENTRY = re.compile(r"^\s*\[\d{1,9}\]:\s*$")
_FIELD = re.compile(r"^\s*(time|host|rank|exitcode|error_file|traceback)\s*: ?(.*)$")
_RANK = re.compile(r"^(\d{1,6}) \(local_rank: (\d{1,6})\)")
_EXIT = re.compile(r"^(-?\d{1,9})\s+\(pid: (\d{1,9})\)")
_AGENT = re.compile(r"failed \(exitcode: (-?\d{1,9})\) local_rank: (\d{1,6}) \(pid: (\d{1,9})\)")
_LAST_SECOND = 9_000_000_000  # what nanoseconds in 64 bits can hold: the year 2255


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
    traceback_line: int = 0
    first_observed: bool = False
    line: int = 0


def starts_table(text: str) -> bool:
    """The heading alone: `Failures: 0` in some other summary is none."""
    return text.strip() == "Failures:" or text.strip().startswith(_ROOT)


@dataclass(slots=True)
class FailureTable:
    """Collects rows from the heading to the closing rule of equals signs; lines of others may stand in between."""

    rows: list[Failure] = field(default_factory=list)
    closed: bool = False
    last_line: int = 0
    _entry: dict[str, str] = field(default_factory=dict)
    _entry_line: int = 0
    _traceback: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_TRACEBACK))
    _traceback_line: int = 0
    _root: bool = False
    _foreign: int = 0

    def feed(self, text: str, number: int) -> bool:
        """True when the line belongs to the table; sets `closed` when it has ended."""
        if text.startswith("====="):
            self.close()
        elif starts_table(text):
            self._flush()
            self._root = _ROOT in text
        elif _ENTRY.match(text):
            self._flush()
            self._entry_line = number
        elif self._traceback and (text[:1] in (" ", "\t") or not text.strip()):
            self._traceback.append(text)
        elif (found := _FIELD.match(text)) is not None:
            self._field(found[1], found[2].strip(), number)
        elif text.strip() and not text.startswith("-----") and "<NO_OTHER_FAILURES>" not in text:
            self._foreign += 1
            self.closed = self._foreign > _FOREIGN_ALLOWED
            return False
        self.last_line = number
        return True

    def close(self) -> None:
        self._flush()
        self.closed = True

    def _field(self, name: str, value: str, number: int) -> None:
        self._entry[name] = value
        self._entry_line = self._entry_line or number
        if name == "traceback":
            self._traceback.append(value)
            self._traceback_line = number

    def _flush(self) -> None:
        entry, self._entry = self._entry, {}
        traceback = "\n".join(self._traceback)
        self._traceback.clear()
        line, self._entry_line = self._entry_line, 0
        rank, code = _RANK.match(entry.get("rank", "")), _EXIT.match(entry.get("exitcode", ""))
        if rank and code and len(self.rows) < MAX_ROWS:
            self.rows.append(
                Failure(
                    rank=int(rank[1]),
                    local_rank=int(rank[2]),
                    exitcode=int(code[1]),
                    pid=int(code[2]),
                    host=entry.get("host", ""),
                    time=entry.get("time", ""),
                    traceback=traceback,
                    traceback_line=self._traceback_line,
                    first_observed=self._root,
                    line=line,
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
    if isinstance(message, str):
        return ErrorFile(message, "", None)
    if not isinstance(message, dict):
        return None
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    return ErrorFile(_text(message.get("message")), _text(extra.get("py_callstack")), _seconds(extra.get("timestamp")))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _seconds(value: Any) -> int | None:
    text = str(value) if isinstance(value, str | int) else ""
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text) and int(text) < _LAST_SECOND else None

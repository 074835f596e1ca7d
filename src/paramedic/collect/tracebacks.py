"""Puts Python tracebacks together again, one rank at a time, also when the ranks' lines are interleaved."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

LITERALS = ("Traceback (most recent call last)",)
MAX_LINES = 600
MAX_TEXT = 16_000
MAX_FRAMES = 60
_FOREIGN_ALLOWED = 20

_START = "Traceback (most recent call last)"
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_FRAME = re.compile(r'^\s*File "([^"]{1,500})", line (\d+)(?:, in (.{1,200}))?')
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]{0,200})(?::(?P<message>.*)|$)")
_USUAL_NAME = re.compile(r"(?:Error|Exception|Warning|Interrupt|Exit|Iteration|Timeout|Failed|Failure|Fault|Group)$")
_LOG_LINE = re.compile(r"^\[?(?:[EWIFDV]\d{3,4} \d\d:|\[?20\d\d[-/]\d\d|(?:ERROR|WARNING|INFO|DEBUG|CRITICAL)\b)")


@dataclass(slots=True)
class Traceback:
    """One traceback in the making. Feed it lines of its rank until `closed`."""

    first_line: int
    uncaught: bool
    """torch's own excepthook wrote it, so nobody caught it."""
    exceptions: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)
    line: int = 0
    closed: bool = False
    _state: str = "frames"
    _lines: int = 0
    _foreign: int = 0
    _size: int = 0

    def feed(self, text: str, number: int, by_torch: bool) -> bool:
        """True when the line belongs to this traceback; sets `closed` when it has ended."""
        self._lines += 1
        if self._lines > MAX_LINES or self._size > MAX_TEXT:
            self.closed = True
            return False
        return getattr(self, f"_in_{self._state}")(text, number, by_torch)  # type: ignore[no-any-return]

    def _in_frames(self, text: str, number: int, by_torch: bool) -> bool:
        if text[:1] in (" ", "\t") or not text.strip():
            self._frame(text)
            return True
        if _START in text:
            self.closed = True
            return False
        found = _EXCEPTION.match(text)
        if found and self._is_exception(found["type"]):
            self._add(text)
            self.types.append(found["type"])
            self.line = number
            self._state = "message"
            return True
        self._foreign += 1
        self.closed = self._foreign > _FOREIGN_ALLOWED
        return False

    def _is_exception(self, name: str) -> bool:
        last = name.rsplit(".", 1)[-1]
        if _USUAL_NAME.search(last):
            return True
        return last[:1].isupper() and last != last.upper() and not self._foreign

    def _in_message(self, text: str, number: int, by_torch: bool) -> bool:
        if text.startswith("Original " + _START):  # a DataLoader worker's traceback, quoted inside the message
            self._state = "frames"
            return True
        if not text.strip():
            self._state = "gap"
            return True
        if text[0] in " \t" or (by_torch and not _LOG_LINE.match(text)):
            if not self._frame(text):
                self._add(text)
            return True
        return self._marker(text)

    def _in_gap(self, text: str, number: int, by_torch: bool) -> bool:
        if not text.strip():
            return True
        if self._marker(text):
            return True
        if by_torch and not _LOG_LINE.match(text) and _START not in text:
            self.closed = False
            self._state = "message"
            return self._in_message(text, number, by_torch)
        return False

    def _in_chain(self, text: str, number: int, by_torch: bool) -> bool:
        if _START in text:
            self._state = "frames"
        else:
            self.closed = bool(text.strip())
        return not self.closed

    def _marker(self, text: str) -> bool:
        self.closed = not text.startswith(_CHAIN)
        self._state = "chain"
        return not self.closed

    def _frame(self, text: str) -> bool:
        if (found := _FRAME.match(text)) is None:
            return False
        self.frames.append(f"{found[1]}:{found[2]} in {(found[3] or '?').strip()}")
        if len(self.frames) > MAX_FRAMES:
            del self.frames[MAX_FRAMES // 3]
        return True

    def _add(self, text: str) -> None:
        self.exceptions.append(text)
        self._size += len(text)

    @property
    def text(self) -> str:
        return "\n".join(self.exceptions)[:MAX_TEXT]

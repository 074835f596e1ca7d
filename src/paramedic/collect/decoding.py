"""Bytes of a log as text: its first lines, one line, those around one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

from paramedic.collect.layouts import plain
from paramedic.regex import regex

MAX_RAW = 16_000
_BINARY_SHARE = 0.05
_ODD = bytes(code for code in range(32) if code not in (7, 8, 9, 10, 12, 13, 27))


class BinaryInput(Exception):  # noqa: N818
    """The stream is no text."""


@dataclass(slots=True)
class WithoutHoles:
    """A log that was emptied while its writer held it open goes on where it was, and in front of that there are only
    noughts. They are left out; what stands behind them is text as before."""

    stream: BinaryIO
    left: bytes = b""
    left_out: int = 0
    _within: bool = False
    """What was read last ended in a hole."""

    def read(self, size: int) -> bytes:
        chunk = self.stream.read(size)
        if not self.left and not self._within and _NOUGHTS not in chunk:
            return chunk
        while chunk:
            self.left += self._without(chunk)
            if len(self.left) >= size or (not self.left and self.left_out > _LONGEST_HOLE):
                break
            chunk = self.stream.read(size)
        taken, self.left = self.left[:size], self.left[size:]
        return taken

    def _without(self, chunk: bytes) -> bytes:
        text = chunk.lstrip(b"\0") if self._within else chunk
        text = _HOLE.sub(b"", text) if _NOUGHTS in text else text
        self.left_out += len(chunk) - len(text)
        self._within = chunk.endswith(_HOLES_END)
        return text


_LONGEST_HOLE = 2 << 30
"""So much of nothing but noughts is read for what may stand behind it."""
_HOLES_END = bytes(16)
_NOUGHTS = bytes(64)
_HOLE = regex(rb"\0{16,}")


def head_lines(head: bytes, is_part: bool) -> list[str]:
    """Raises BinaryInput when it is no text. The last line is left out where only a part of it was read."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BinaryInput("UTF-16 text; convert it with iconv -f UTF-16 -t UTF-8")
    odd = len(head) - len(head.translate(None, _ODD))
    if odd > _BINARY_SHARE * len(head):
        raise BinaryInput("binary file")
    lines = head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").split("\n")
    return lines[:-1] if is_part and len(lines) > 1 else lines


def decoded(raw: bytes, most: int = MAX_RAW) -> str:
    text = raw[:most].decode("utf-8", "replace")
    if len(raw) > most:
        text = text.rpartition(" ")[0] or text  # half a word might be half a secret, and not be known as one
    return text


def readable(lines: list[bytes]) -> list[str]:
    if not lines:
        return []
    text = b"\n".join(lines).decode("utf-8", "replace")
    if "\r" in text or "\x1b" in text:
        text = "\n".join(plain(line.rstrip("\r").rsplit("\r", 1)[-1]) for line in text.split("\n"))
    return text.split("\n")

"""A stream in big blocks of whole lines. What is read from it does not depend on where a block happens to end.

A line ends at `\\n`. A progress bar overwrites its line with `\\r`: such a piece is read by itself, with one number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple, Protocol

BLOCK = 1 << 20
MAX_LINE = 1 << 20
WINDOW = 4_000
"""So many bytes of what stands before and after are kept, for context."""
CONTEXT = 3
NEWLINE = 10


class Bytes(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Block(NamedTuple):
    before: bytes
    lines: bytes
    after: bytes
    cut: bool = False
    """The last line was too long: the rest of it is not there."""
    last: bool = False


def blocks(head: bytes, stream: Bytes) -> Iterator[Block]:
    data, start, dropping = b"", 0, False  # data[:start] was given out and is only context now
    for chunk in _chunks(head, stream):
        if dropping:
            chunk = chunk[_line_end(chunk) :]  # noqa: PLW2901
            dropping = not chunk
        data, start = data[max(start - WINDOW, 0) :] + chunk, min(start, WINDOW)
        stop = _last_stop(data, start)
        if stop > start:
            yield Block(data[max(start - WINDOW, 0) : start], data[start:stop], data[stop : stop + WINDOW])
            start = stop
        elif len(data) - start > MAX_LINE + WINDOW:
            stop = start + MAX_LINE
            yield Block(data[max(start - WINDOW, 0) : start], data[start:stop], b"", cut=True)
            rest = data[stop:]
            rest = rest[_line_end(rest) :]
            data, start, dropping = data[:stop] + rest, stop, not rest
    if len(data) > start:
        yield Block(data[max(start - WINDOW, 0) : start], data[start:], b"", last=True)


def _chunks(head: bytes, stream: Bytes) -> Iterable[bytes]:
    rest = iter(lambda: stream.read(BLOCK), b"")
    return chain((head,), rest) if head else rest


def _last_stop(data: bytes, start: int) -> int:
    """Behind the last line that has its whole context behind it; within an endless line behind a carriage return."""
    most = len(data) - WINDOW
    stop = data.rfind(b"\n", start, max(most, start)) + 1
    if not stop and most - start > MAX_LINE:
        stop = data.rfind(b"\r", start, most) + 1
        stop += data[stop : stop + 1] == b"\n"
    return stop


def _line_end(data: bytes) -> int:
    """Where the first line ends, at `\\n` or `\\r`; at the end of the data when it does not end there."""
    newline = data.find(b"\n")
    end = len(data) if newline < 0 else newline
    back = data.find(b"\r", 0, end)
    return end if back < 0 else back


def piece_start(lines: bytes, at: int, hit: int, returns: bool = True) -> int:
    """`returns` says whether there may be any `\\r` in them."""
    start = max(lines.rfind(b"\n", at, hit) + 1, at)
    return max(lines.rfind(b"\r", start, hit) + 1, start) if returns else start


def piece_end(lines: bytes, at: int, returns: bool = True) -> tuple[int, int]:
    """(where the piece ends, where the next one starts); `\\r\\n` is one ending."""
    if not returns:
        end = lines.find(b"\n", at)
        end = len(lines) if end < 0 else end
        return end, end + 1
    start, step = at, 256  # in growing steps: a log without any `\n` is not searched to its end for every piece
    while start < len(lines):
        stop = start + step
        newline = lines.find(b"\n", start, stop)
        back = lines.find(b"\r", start, stop if newline < 0 else newline)
        if back >= 0:
            return back, back + 1 + (lines[back + 1 : back + 2] == b"\n")
        if newline >= 0:
            return newline, newline + 1
        start, step = stop, step * 4
    return len(lines), len(lines) + 1


def line_before(block: Block, start: int) -> bytes | None:
    """The last whole line before a piece."""
    before = _before(block, start)
    end = before.rfind(b"\n")
    first = before.rfind(b"\n", 0, max(end, 0)) + 1
    return None if end < 0 or (first == 0 and len(before) == WINDOW) else before[first:end]


def _before(block: Block, start: int) -> bytes:
    before = block.lines[max(start - WINDOW, 0) : start]
    return before if start >= WINDOW else (block.before + before)[-WINDOW:]


def around(block: Block, start: int, end: int) -> tuple[list[bytes], list[bytes]]:
    """All lines nearby, before and after a piece; the first and the last of them may be cut."""
    after = (block.lines[end : end + WINDOW] + block.after)[:WINDOW]
    return _before(block, start).split(b"\n")[:-1], after.split(b"\n")[1:]


def context(block: Block, start: int, end: int) -> tuple[list[bytes], list[bytes]]:
    """Whole lines before and after a piece. A part of a line is left out: it might be the part after `password=`."""
    before = _before(block, start)
    after = block.lines[end : end + WINDOW]
    if len(after) < WINDOW:
        after = (after + block.after)[:WINDOW]
    earlier = before.rsplit(b"\n", CONTEXT + 1)  # the first of them has no beginning, or more lines than are wanted
    later = after.split(b"\n", CONTEXT + 1)
    earlier = earlier[len(before) == WINDOW or len(earlier) > CONTEXT + 1 : -1]
    later = later[1 : -1 if len(after) == WINDOW or len(later) > CONTEXT + 1 else None]
    return earlier, [line for line in later if line.strip()]

"""The black box: a ring of the last collectives that Python code called, in a mapped file. A store into memory is all
it costs, and what is in it outlives SIGKILL and an abort inside a library."""

from __future__ import annotations

import mmap
import os

MAGIC = b"paramedic-box 1\n"
SLOTS, SIZE = 256, 256
_BEGUN, _DONE, _RAISED = b"B", b"D", b"R"


class Box:
    """Slot n holds call number n of this process: `B` while it runs, `D` once it has returned, `R` if it raised."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            size = len(MAGIC) + SLOTS * SIZE
            os.posix_fallocate(descriptor, 0, size)  # a hole that a full disk cannot fill would be SIGBUS later
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._map[: len(MAGIC)] = MAGIC
        self.count = 0

    def begin(self, said: str) -> int:
        number = self.count
        self.count = number + 1
        at = len(MAGIC) + number % SLOTS * SIZE
        data = b"%d\t%s" % (number, said.encode("utf-8", "replace")[: SIZE - 32])
        self._map[at : at + SIZE] = (b"\0" + data).ljust(SIZE, b"\0")
        self._map[at : at + 1] = _BEGUN  # last, so that a half-written slot is not taken for a call
        return at

    def end(self, at: int, done: bool = True) -> None:
        self._map[at : at + 1] = _DONE if done else _RAISED

"""A rank's recording on disk: one log that only grows, and payloads in segments, one a step.

Everything is handed to the kernel at once: a process that is killed at any moment loses nothing but its last line.

head.json             version, who, with what
log.tape             what happened, one JSON object a line, each with a checksum that goes on from the line before
segments/setup.seg    payloads up to the first step, which every replay needs
segments/small.seg    the small ones of all steps: numbers that programs decide by
segments/each.seg     every tenth step's fingerprint of each tensor
segments/step-N.seg   all others of step N, as long as they are among the last
segments/state-N.seg  parameters, buffers, optimizer and random states after step N
segments/N.spare      a dropped step's, to be written over: memory that the kernel has given already is much cheaper
"""

from __future__ import annotations

import json
import os
import stat
import struct
import threading
import zlib
from collections.abc import Iterable
from typing import Any, BinaryIO

VERSION = 2
"""2: optimizer states have lines of their own, beside those of parameters and buffers."""
FOLDER = "recording"
MARK = b"PMB1"
HEADER = struct.Struct("<4s16sQ")
SMALL = 1024
_FOR_GOOD = ("small", "each")
_MOST_FOR_GOOD = 256 << 20
_MOST_LINE = 64 << 20
_FLAGS = os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
_END = bytes(4)
"""Where the next header will be. A payload counts once its header is there, which is written after it."""


def folder_of(place: str, rank: int, attempt: int = 0) -> str:
    """Each attempt of a job that its launcher starts again has a recording of its own."""
    return os.path.join(place, f"{FOLDER}-{attempt}" if attempt else FOLDER, f"rank-{rank:05d}")


class Tape:
    """Writes one rank's recording. Whoever calls it holds no lock of his own."""

    def __init__(self, folder: str, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self.stored = self.logged = self.written = 0
        """Bytes: what is there now, the log alone, and all that ever was."""
        self.is_full = False
        self._lock = threading.Lock()
        self._sum = 0
        os.makedirs(os.path.join(folder, "segments"), exist_ok=True)
        self._log = os.open(os.path.join(folder, "log.tape"), _FLAGS | os.O_TRUNC | os.O_APPEND, 0o600)
        self._open: dict[str, int] = {}
        self._at: dict[str, int] = {}
        """Where in an open segment the next payload goes."""
        self._old: dict[str, int] = {}
        """Bytes of an open segment that are there from its former use."""
        self._spare: dict[str, list[tuple[str, int]]] = {}
        self._spares = 0
        self._keys: dict[str, set[str]] = {}
        self._sizes: dict[str, int] = {}

    def head(self, said: dict[str, Any]) -> None:
        path = os.path.join(self.folder, "head.json")
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(dict(said, paramedic_recording=VERSION), file, indent=1)
        os.replace(path + ".part", path)

    def line(self, said: dict[str, Any]) -> None:
        text = json.dumps(said, separators=(",", ":"))[:-1].encode("utf-8", "replace")
        with self._lock:
            self._sum = zlib.crc32(text, self._sum)
            whole = text + b',"c":"%08x"}\n' % self._sum
            os.write(self._log, whole)
            self.stored += len(whole)
            self.logged += len(whole)
            self.written += len(whole)

    def put(self, segment: str, key: str, parts: list[Any]) -> bool:
        """False when there is no room left. The same content is kept once in a segment."""
        size = sum(len(part) for part in parts)
        with self._lock:
            if key in self._keys.setdefault(segment, set()):
                return True
            if self.stored + size > self.limit:
                self._drop_spares()
            if self.is_full or self.stored + size > self.limit:
                self.is_full = True
                return False
            if segment in _FOR_GOOD and self._sizes.get(segment, 0) > _MOST_FOR_GOOD:
                return False
            self._append(segment, HEADER.pack(MARK, bytes.fromhex(key), size), parts, size)
            self._keys[segment].add(key)
            self._sizes[segment] = self._sizes.get(segment, 0) + size + HEADER.size
            self.stored += size + HEADER.size
            self.written += size + HEADER.size
        return True

    def _append(self, segment: str, header: bytes, parts: list[Any], size: int) -> None:
        file, at = self._file(segment), self._at[segment]
        end = at + HEADER.size + size
        _write_all(file, [*parts, _END] if end < self._old.get(segment, 0) else parts, at + HEADER.size)
        os.pwrite(file, header, at)
        self._at[segment] = end

    def _file(self, segment: str) -> int:
        if segment not in self._open:
            path, spares = self._path(segment), self._spare.get(segment.partition("-")[0])
            flags = _FLAGS if spares else _FLAGS | os.O_TRUNC
            if spares:
                spare, size = spares.pop()
                os.rename(spare, path)  # nothing in it counts: it was ended at its beginning
                self._old[segment] = size
                self.stored -= size
            self._open[segment] = os.open(path, flags, 0o600)
            self._at[segment] = 0
        return self._open[segment]

    def _path(self, segment: str) -> str:
        return os.path.join(self.folder, "segments", segment + ".seg")

    def close(self, segment: str) -> None:
        with self._lock:
            if segment in self._open:
                file, end = self._open.pop(segment), self._at.pop(segment)
                if end < self._old.pop(segment, 0):
                    os.ftruncate(file, end)
                os.close(file)
            self._keys.pop(segment, None)

    def drop(self, segments: Iterable[str], reuse: bool = False) -> None:
        for segment in segments:
            self.close(segment)
            with self._lock:
                size = self._sizes.pop(segment, 0)
                try:
                    if reuse and size:
                        self._put_aside(segment, size)
                        continue
                    self.stored -= size
                    os.unlink(self._path(segment))
                except OSError:
                    continue

    def _put_aside(self, segment: str, size: int) -> None:
        file = os.open(self._path(segment), _FLAGS)
        os.pwrite(file, _END, 0)
        os.close(file)
        self._spares += 1
        spare = os.path.join(self.folder, "segments", f"{self._spares}.spare")
        os.rename(self._path(segment), spare)
        self._spare.setdefault(segment.partition("-")[0], []).append((spare, size))

    def _drop_spares(self) -> None:
        for path, size in [one for many in self._spare.values() for one in many]:
            self.stored -= size
            os.unlink(path)
        self._spare.clear()

    def before(self, step: int) -> list[str]:
        """Segments of earlier steps."""
        return [one for one in list(self._sizes) if "-" in one and int(one.split("-")[1]) < step]

    def make_room(self, step: int) -> bool:
        """Drops what lies before that step; false when there is nothing."""
        early = self.before(step)
        self.drop(early)
        self.is_full = self.is_full and not early
        return bool(early)

    def sync(self) -> None:
        """Also through a crash of the machine."""
        with self._lock:
            for file in (self._log, *self._open.values()):
                os.fsync(file)

    def end(self) -> None:
        """The job is over: nothing will be written over any more."""
        self.sync()
        with self._lock:
            for segment, file in self._open.items():
                if self._at[segment] < self._old.pop(segment, 0):
                    os.ftruncate(file, self._at[segment])
            self._drop_spares()


def _write_all(file: int, parts: list[Any], at: int) -> None:
    left = [memoryview(part) for part in parts if len(part)]
    while left:
        done = os.pwritev(file, left[:64], at)
        at += done
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if left and done:
            left[0] = left[0][done:]


def packed(parts: dict[str, bytes]) -> list[bytes]:
    """Named pieces of bytes as one payload."""
    names = json.dumps({name: len(data) for name, data in parts.items()}).encode()
    return [struct.pack("<I", len(names)), names, *parts.values()]


def unpacked(data: bytes) -> dict[str, bytes]:
    (size,) = struct.unpack_from("<I", data)
    at, parts = 4 + size, {}
    for name, length in json.loads(data[4:at]).items():
        parts[name] = data[at : at + length]
        at += length
    return parts


# -- reading -------------------------------------------------------------------------------------------------------


def opened(path: str) -> BinaryIO:
    """A plain file alone: a recording may be a stranger's, and a link or a pipe in it leads elsewhere."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{os.path.basename(path)} is no plain file")
    return open(handle, "rb")


def read_log(path: str) -> tuple[list[dict[str, Any]], str]:
    """All whole lines up to the first that does not belong there, and what is wrong with that one."""
    lines: list[dict[str, Any]] = []
    sum = 0
    with opened(path) as file:
        for number, raw in enumerate(iter(lambda: file.readline(_MOST_LINE), b""), 1):
            if len(raw) == _MOST_LINE:
                return lines, f"line {number} is far too long"
            body, mark, check = raw.rpartition(b',"c":"')
            sum = zlib.crc32(body, sum)
            if not mark or check != b'%08x"}\n' % sum:
                return lines, "" if not raw.endswith(b"\n") else f"line {number} was changed after it was written"
            try:
                said = json.loads(body + b"}")
            except ValueError:
                said = None
            if not isinstance(said, dict):
                return lines, f"line {number} is no JSON object"
            lines.append(said)
    return lines, ""


class Segments:
    """Where each payload of a rank lies; read when asked for."""

    def __init__(self, folder: str) -> None:
        self._at: dict[str, tuple[str, int, int]] = {}
        place = os.path.join(folder, "segments")
        for name in sorted(os.listdir(place)) if os.path.isdir(place) else ():
            path = os.path.join(place, name)
            if name.endswith(".seg") and stat.S_ISREG(os.lstat(path).st_mode):
                self._index(path)

    def _index(self, path: str) -> None:
        """A last payload that is not whole is left out."""
        end = os.path.getsize(path)
        with opened(path) as file:
            at = 0
            while at + HEADER.size <= end:
                file.seek(at)
                mark, key, size = HEADER.unpack(file.read(HEADER.size))
                at += HEADER.size
                if mark != MARK or at + size > end:
                    return
                self._at.setdefault(key.hex(), (path, at, size))
                at += size

    def __contains__(self, key: object) -> bool:
        return key in self._at

    def read(self, key: str) -> bytes:
        path, at, size = self._at[key]
        with opened(path) as file:
            file.seek(at)
            return file.read(size)

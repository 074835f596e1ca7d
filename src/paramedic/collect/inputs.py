"""What the user named → byte streams: files, folders, globs, archives, standard input."""

from __future__ import annotations

import codecs
import glob
import io
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, BinaryIO, cast

from paramedic.collect.archives import NOTES, Chosen, Input, Wanted, is_log, unpack
from paramedic.collect.streams import SafeStream
from paramedic.errors import ParamedicError
from paramedic.model import Skipped

__all__ = ["Input", "open_inputs"]


class _FromUtf16(io.RawIOBase):
    """UTF-16, as PowerShell's `>` and `Tee-Object` write it, read as UTF-8."""

    def __init__(self, stream: BinaryIO) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        self._stream = stream
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raw = b"\0"
        while raw and not self._ready:
            raw = self._stream.read(1 << 16)
            self._ready = self._decoder.decode(raw, final=not raw).encode("utf-8", "replace")
        piece, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(piece)] = piece
        return len(piece)


def _in_utf8(item: Input) -> Input:
    """Here, before anybody reads it: in UTF-16 no secret would be known as one."""
    stream = cast(io.BufferedReader, item.stream)
    first = stream.raw.peek(2) if isinstance(stream.raw, SafeStream) else stream.peek(2)
    if first[:2] not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return item
    return Input(item.name, cast(BinaryIO, io.BufferedReader(_FromUtf16(item.stream))))


_Seen = dict[tuple[int, int], str]


def open_inputs(paths: Iterable[str], skipped: list[Skipped], wanted: Wanted = is_log) -> Iterator[Input]:
    """Raises ParamedicError for what the user named and we cannot read; what lies inside a folder is only skipped."""
    files = [file for path in paths for file in _expand(path)]
    seen: _Seen = {}
    for file in files:
        yield from map(_in_utf8, _stdin(skipped) if file == "-" else _named(file, seen, skipped, wanted))


def _expand(path: str) -> list[str]:
    if path == "-" or os.path.lexists(path):
        return [path]
    found = sorted(glob.glob(path, recursive=True)) if glob.has_magic(path) and "\0" not in path else []
    if not found:
        raise ParamedicError(f"{path}: no such file or folder")
    return found


def _stdin(skipped: list[Skipped]) -> Iterator[Input]:
    if sys.stdin is None:
        raise ParamedicError("-: standard input is closed")
    yield from unpack("-", sys.stdin.buffer, skipped)


def _named(path: str, seen: _Seen, skipped: list[Skipped], wanted: Wanted) -> Iterator[Input]:
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            os.scandir(path).close()
        elif stat.S_ISREG(mode):
            open(path, "rb").close()
        elif not stat.S_ISFIFO(mode):
            raise ParamedicError(f"{path}: neither a file nor a folder")
        reader = _folder if stat.S_ISDIR(mode) else _file
        yield from reader(path, seen, skipped, wanted)
    except OSError as error:
        raise ParamedicError(f"{path}: cannot be read: {error.strerror or error}") from None


def _folder(folder: str, seen: _Seen, skipped: list[Skipped], wanted: Wanted) -> Iterator[Input]:
    chosen = Chosen(folder, skipped, wanted, folder=True)

    def unreadable(error: OSError) -> None:
        skipped.append(Skipped(str(error.filename), f"cannot be read: {error.strerror or error}"))

    notes = []
    for root, folders, files in os.walk(folder, onerror=unreadable):
        chosen.inside(root)
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f != "__pycache__")
        for linked in (f for f in folders if os.path.islink(os.path.join(root, f))):
            skipped.append(Skipped(os.path.join(root, linked), "a link to a folder is not followed"))
        for name in sorted(files):
            if chosen.wants(name, partial(_head_of, os.path.join(root, name))):
                chosen.trim()
                yield from _found(os.path.join(root, name).removeprefix("./"), seen, skipped, wanted)
            elif name.lower().endswith(NOTES):
                notes.append(os.path.join(root, name).removeprefix("./"))
            if chosen.full:
                break
        chosen.trim()
        if chosen.full:
            break
    for path in notes:
        if chosen.only_notes(path):
            yield from _found(path, seen, skipped, wanted)
    chosen.done()


def _head_of(path: str) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return b""
        with open(path, "rb", buffering=0) as raw:
            return raw.read(512)
    except OSError:
        return b""


def _found(path: str, seen: _Seen, skipped: list[Skipped], wanted: Wanted) -> Iterator[Input]:
    try:
        if stat.S_ISREG(os.stat(path).st_mode):
            yield from _file(path, seen, skipped, wanted)
        else:
            skipped.append(Skipped(path, "neither a file nor a folder"))
    except OSError as error:
        skipped.append(Skipped(path, f"cannot be read: {error.strerror or error}"))


def _file(path: str, seen: _Seen, skipped: list[Skipped], wanted: Wanted) -> Iterator[Input]:
    with open(path, "rb", buffering=0) as raw:
        about = os.fstat(raw.fileno())
        key = about.st_dev, about.st_ino
        if key in seen:
            skipped.append(Skipped(path, f"the same file as {seen[key]}"))
        else:
            seen[key] = path
            yield from unpack(path, raw, skipped, wanted)

"""Byte streams that are safe to read: whatever breaks ends them, and nothing unpacks without bound."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, cast

import zstandard

MAX_UNPACKED = 16 << 30
FREE_UNPACKED = 1 << 30  # so much any file may unpack to
MAX_RATIO = 250  # beyond that; a log packs 10 to 50 times, one that repeats itself more
_MAX_DICTIONARY = 256 << 20
_CHUNK = 1 << 16
_PAST_END = 16

BROKEN = (EOFError, OSError, tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, zstandard.ZstdError)


class SafeStream(io.RawIOBase):
    """Reads through. Where the inner stream fails it ends, and `broken` says why; what came before is not lost."""

    def __init__(self, inner: Any, budget: Budget | None = None) -> None:
        self._fill: Callable[[memoryview], int | None] = getattr(inner, "readinto1", None) or inner.readinto
        self._inner, self._budget = inner, budget
        self._head = b""
        self.count = 0
        self.broken = ""

    def readable(self) -> bool:
        return True

    def peek(self, size: int = 512) -> bytes:
        """The first bytes, which stay to be read."""
        piece = bytearray(size)
        while len(self._head) < size and (got := self._read(memoryview(piece)[: size - len(self._head)])):
            self._head += piece[:got]
        return self._head

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        if not self._head:
            return self._read(view)
        piece, self._head = self._head[: len(view)], self._head[len(view) :]
        view[: len(piece)] = piece
        return len(piece)

    def buffered(self) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(self, _CHUNK))

    def _read(self, view: memoryview) -> int:
        if self.broken:
            return 0
        try:
            got = self._fill(view) or 0
            self.count += got
            if self._budget is not None:
                self._budget.spend(got)
        except BROKEN as error:
            self.broken = reason(error)
            return 0
        return got


@dataclass(slots=True)
class Budget:
    """How much may come out of one packed file, over all its members and layers."""

    packed: Callable[[], int]
    unpacked: int = 0

    def spend(self, size: int) -> None:
        self.unpacked += size
        if self.unpacked > min(MAX_UNPACKED, max(FREE_UNPACKED, MAX_RATIO * self.packed())):
            raise OSError("unpacks to suspiciously much")


def unpacker(head: bytes) -> Callable[[BinaryIO], Any] | None:
    """By the first bytes, not by the name."""
    return next((opener for magic, opener in _COMPRESSED.items() if head.startswith(magic)), None)


def is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def is_zip(head: bytes) -> bool:
    return head.startswith((b"PK\x03\x04", b"PK\x05\x06"))


def reason(error: BaseException) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200]


class _Frames(io.BufferedIOBase):
    """xz and zstd, frame by frame, so that a cut is noticed. Fed little at a time: a kilobyte can hold megabytes."""

    def __init__(self, stream: IO[bytes], new: Callable[[], Any]) -> None:
        self._stream, self._new = stream, new
        self._unpack = new()
        self._ready = io.BytesIO()

    def readable(self) -> bool:
        return True

    def read1(self, size: int | None = -1, /) -> bytes:
        while not (data := self._ready.read(size)):
            packed = (self._unpack.eof and self._unpack.unused_data) or self._stream.read(1 << 10)
            if self._unpack.eof:
                packed = packed.lstrip(b"\0")
                if not packed:
                    return b""
                self._unpack = self._new()
            elif not packed:
                raise EOFError("cut off before its end")
            self._ready = io.BytesIO(self._unpack.decompress(packed))
        return data


def _xz(stream: IO[bytes]) -> _Frames:
    return _Frames(stream, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_DICTIONARY))


def _zstd(stream: IO[bytes]) -> _Frames:
    return _Frames(stream, zstandard.ZstdDecompressor(max_window_size=_MAX_DICTIONARY).decompressobj)


_COMPRESSED: dict[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": _xz,
    b"\x28\xb5\x2f\xfd": _zstd,
}


_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class BoundedTarInfo(tarfile.TarInfo):
    """A header that asks for gigabytes of names or attributes is refused: tarfile would read them into memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _HEADERS and not 0 <= self.size <= 1 << 20:
            raise tarfile.ReadError("a header of the archive is absurdly large")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]


class _Ending:
    """A stream that says so when it is read on and on behind its end: tarfile skips a member of any size block by
    block, also one of exabytes in a file of kilobytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._past = stream, 0

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._past = 0 if data else self._past + 1
        if self._past > _PAST_END:
            raise EOFError("cut off before its end")
        return data


def open_tar(stream: IO[bytes]) -> tarfile.TarFile:
    return tarfile.open(fileobj=cast(IO[bytes], _Ending(stream)), mode="r|", tarinfo=BoundedTarInfo)


def open_tar_zst(stream: IO[bytes]) -> tuple[tarfile.TarFile, SafeStream]:
    packed = SafeStream(stream)
    unpacked = SafeStream(_zstd(packed.buffered()), Budget(lambda: packed.count))
    return open_tar(unpacked.buffered()), unpacked

"""What the user named → byte streams: files, folders, globs, archives, standard input. Nothing is ever unpacked to disk."""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import lzma
import os
import stat
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import zstandard

from paramedic.errors import ParamedicError
from paramedic.model import Skipped

MAX_UNPACKED = 16 << 30
MAX_RATIO = 2_000  # a log packs 10 to 50 times; a bomb packs far better
MAX_FILES = 100_000

_NOT_LOGS = frozenset(
    ".py .pyc .ipynb .md .rst .html .css .js .ts .c .cc .cpp .cu .h .hpp .so .o .a .toml .ini .cfg .yaml .yml .csv .tsv "
    ".pt .pth .ckpt .bin .safetensors .onnx .npy .npz .pkl .pickle .arrow .parquet .png .jpg .jpeg .gif .svg .pdf .whl "
    ".lock .db .sqlite .tfevents .sh".split()
)
BROKEN = (EOFError, OSError, tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, zstandard.ZstdError)


@dataclass(frozen=True, slots=True)
class Input:
    """An opened stream and its name for people: the path, `a.tar!/x`, or `-`."""

    name: str
    stream: BinaryIO
    size: int | None = None


def open_inputs(paths: Iterable[str], skipped: list[Skipped]) -> Iterator[Input]:
    """Raises ParamedicError for what the user named and we cannot read; what lies inside a folder is only skipped."""
    for path in paths:
        if path == "-":
            yield from _unpack("-", cast(BinaryIO, sys.stdin.buffer), None, skipped)
        else:
            for file in _expand(path):
                yield from _open_named(file, skipped)


def _expand(path: str) -> list[str]:
    if os.path.lexists(path):
        return [path]
    found = sorted(glob.glob(path, recursive=True)) if glob.has_magic(path) else []
    if not found:
        raise ParamedicError(f"{path}: no such file or folder")
    return found


def _open_named(path: str, skipped: list[Skipped]) -> Iterator[Input]:
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            os.scandir(path).close()
        elif stat.S_ISREG(mode) or stat.S_ISFIFO(mode):
            open(path, "rb").close() if stat.S_ISREG(mode) else None
        else:
            raise ParamedicError(f"{path}: neither a file nor a folder")
    except OSError as error:
        raise ParamedicError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # a NUL in the name
        raise ParamedicError(f"{path!r}: {error}") from None
    if stat.S_ISDIR(mode):
        yield from _folder(path, skipped)
    else:
        yield from _file(path, path, skipped)


def _folder(folder: str, skipped: list[Skipped]) -> Iterator[Input]:
    passed_over: dict[str, int] = {}
    count = 0
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f != "__pycache__")
        for name in sorted(files):
            path = os.path.join(root, name)
            suffix = Path(name).suffix.lower()
            if name.startswith(".") or suffix in _NOT_LOGS or (suffix == ".json" and name != "error.json"):
                passed_over[suffix or name] = passed_over.get(suffix or name, 0) + 1
                continue
            count += 1
            if count > MAX_FILES:
                skipped.append(Skipped(folder, f"more than {MAX_FILES} files: the rest was not read"))
                return
            try:
                if not stat.S_ISREG(os.stat(path).st_mode):
                    skipped.append(Skipped(path, "neither a file nor a folder"))
                    continue
                yield from _file(path, path, skipped)
            except OSError as error:
                skipped.append(Skipped(path, f"cannot be read: {error.strerror or error}"))
    if passed_over:
        kinds = ", ".join(f"{n} × {kind}" for kind, n in sorted(passed_over.items()))
        skipped.append(Skipped(folder, f"not logs by their names: {kinds}"))


def _file(path: str, name: str, skipped: list[Skipped]) -> Iterator[Input]:
    size = os.path.getsize(path)
    with open(path, "rb", buffering=0) as raw:
        stream = io.BufferedReader(raw, 1 << 16)
        yield from _unpack(name, stream, size, skipped)


def _unpack(name: str, stream: BinaryIO, size: int | None, skipped: list[Skipped]) -> Iterator[Input]:
    """Looks at the first bytes, not at the name: compressed streams are unwrapped, archives are walked."""
    magic = _peek(stream)
    try:
        if magic.startswith(b"PK\x03\x04"):
            yield from _zip(name, stream, skipped)
            return
        opener = next((o for m, o in _COMPRESSED.items() if magic.startswith(m)), None)
        if opener is not None:
            packed = _Counted(stream)
            inner = io.BufferedReader(_Counted(opener(packed), packed), 1 << 16)
            if _is_tar(_peek(inner)):
                yield from _tar(name, inner, skipped)
            else:
                yield Input(name, cast(BinaryIO, inner))
        elif _is_tar(magic):
            yield from _tar(name, stream, skipped)
        else:
            yield Input(name, stream, size)
    except BROKEN as error:
        skipped.append(Skipped(name, f"damaged or truncated: {reason(error)}; what could be read was used"))


def _tar(name: str, stream: IO[bytes], skipped: list[Skipped]) -> Iterator[Input]:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            if not _wanted(name, member.name, skipped):
                continue
            if member.issym() or member.islnk():
                skipped.append(Skipped(f"{name}!/{member.name}", "a link inside an archive is not followed"))
            elif member.isreg() and (inner := archive.extractfile(member)) is not None:
                yield from _member(f"{name}!/{member.name}", cast(BinaryIO, inner), member.size, skipped)


def _zip(name: str, stream: BinaryIO, skipped: list[Skipped]) -> Iterator[Input]:
    with zipfile.ZipFile(stream) as archive:
        for info in archive.infolist():
            if info.is_dir() or not _wanted(name, info.filename, skipped):
                continue
            member = f"{name}!/{info.filename}"
            if info.file_size > MAX_RATIO * max(info.compress_size, 1024):
                skipped.append(Skipped(member, "unpacks to suspiciously much: not read"))
                continue
            try:
                with archive.open(info) as inner:
                    yield from _member(member, cast(BinaryIO, inner), info.file_size, skipped)
            except (RuntimeError, NotImplementedError) as error:  # encrypted, or a method Python lacks
                skipped.append(Skipped(member, str(error)))


def _member(name: str, stream: BinaryIO, size: int, skipped: list[Skipped]) -> Iterator[Input]:
    buffered = io.BufferedReader(cast(io.RawIOBase, stream), 1 << 16)
    magic = _peek(cast(BinaryIO, buffered))
    opener = next((o for m, o in _COMPRESSED.items() if magic.startswith(m)), None)
    if magic.startswith(b"PK\x03\x04") or _is_tar(magic):
        skipped.append(Skipped(name, "an archive inside an archive is not opened"))
    elif opener is not None:
        packed = _Counted(buffered)
        yield Input(name, cast(BinaryIO, _Counted(opener(packed), packed)))
    else:
        yield Input(name, cast(BinaryIO, buffered), size)


def _wanted(archive: str, member: str, skipped: list[Skipped]) -> bool:
    parts = member.replace("\\", "/").split("/")
    if member.startswith("/") or ".." in parts:
        skipped.append(Skipped(f"{archive}!/{member}", "the name points out of the archive: not read"))
        return False
    suffix = Path(member).suffix.lower()
    hidden = parts[-1].startswith(".")
    return not hidden and suffix not in _NOT_LOGS and (suffix != ".json" or parts[-1] == "error.json")


class _Counted(io.RawIOBase):
    """Reads through and counts; what comes out of `packed` may not be absurdly more than went in."""

    def __init__(self, inner: IO[bytes], packed: _Counted | None = None) -> None:
        self._inner, self._packed = inner, packed
        self.count = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._inner.read(size)
        self.count += len(data)
        if self._packed is not None:
            limit = max(MAX_RATIO * max(self._packed.count, 1 << 16), 64 << 20)
            if self.count > min(limit, MAX_UNPACKED):
                raise OSError("unpacks to suspiciously much")
        return data

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast(bytearray, buffer))
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


def _zstd(stream: io.RawIOBase) -> IO[bytes]:
    reader = zstandard.ZstdDecompressor(max_window_size=1 << 28).stream_reader(
        cast(IO[bytes], stream), read_across_frames=True
    )
    return cast(IO[bytes], reader)


_COMPRESSED: dict[bytes, Callable[[Any], IO[bytes]]] = {
    b"\x1f\x8b": lambda s: cast(IO[bytes], gzip.GzipFile(fileobj=s)),
    b"BZh": lambda s: cast(IO[bytes], bz2.BZ2File(s)),
    b"\xfd7zXZ\x00": lambda s: cast(IO[bytes], lzma.LZMAFile(s)),
    b"\x28\xb5\x2f\xfd": _zstd,
}


def _peek(stream: BinaryIO) -> bytes:
    peek = getattr(stream, "peek", None)
    return bytes(peek(512))[:512] if peek else b""


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def reason(error: BaseException) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200]

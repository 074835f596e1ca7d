"""Archives → the logs in them, read in place. Nothing is unpacked to disk, and no name leads out of the archive."""

from __future__ import annotations

import io
import os
import re
import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from paramedic.collect import exports, notebooks, smi
from paramedic.collect.streams import BROKEN, Budget, SafeStream, is_tar, is_zip, open_tar, reason, unpacker
from paramedic.model import Skipped
from paramedic.regex import regex

MAX_FILES = 100_000
MAX_SKIPPED = 200
"""So many things that were not read are named for each folder and archive; the others are counted."""
_MAX_ZIP_LIST = 64 << 20
_MAX_NAME = 500
_MAX_BASE = 255
"""No file system has longer names of files; the patterns for names are made for such."""
_CHUNK = 1 << 16
_HEAD = 512
_MAX_SUFFIX = 40
_MAX_KINDS = 40  # of files that are no logs, named in one line

_CODE = "py pyc ipynb md rst html css js ts c cc cpp cu h hpp so o a sh"
_DATA = (
    "toml ini cfg yaml yml csv tsv lock db sqlite tfevents arrow parquet npy npz pkl pickle bin pt pth ckpt safetensors"
)
_OTHER = "seg onnx png jpg jpeg gif svg pdf whl"
_OWN_REPORT = "report.txt"
_OWN_ANSWERS = frozenset({_OWN_REPORT, "report.html", "report.json", "verdict.json"})
"""As `paramedic run` leaves them beside what it recorded."""
_NO_FILES = "holds no files"
_NOT_REDIRECTED = f"{_NO_FILES}; torchrun writes to --log-dir only with -r 3 or --tee 3"
_NOT_LOGS = frozenset(f".{suffix}" for suffix in f"{_CODE} {_DATA} {_OTHER}".split())
NOTES = (".md", ".ipynb")
_MOST_NOTES = 16
_METRICS = regex(r"(?:metrics|history|progress|results|train\w*[_-](?:log|loss|metrics|history)\w*)\.[ct]sv", re.I)
"""The tables that loggers of Lightning, Keras, RLlib, Ultralytics and DeepSpeed write beside or instead of lines."""

_JSON = regex(r"error\.json|.+\.(?:process|watch|net)\.json|(?:.*[._-])?(?:py-?spy|stacks?)(?:[._-].*)?\.json", re.I)
"""What torchrun, `paramedic attach`, `paramedic run`, `paramedic net` and py-spy write."""


_HEADING = regex(rb"^==> (.{1,200}) <==\r?$", re.M)
_NEAR_THE_TOP = 1_000
_MOST_JOINED = 16 << 20
_MOST_PARTS = 4_096
_MOST_ABOVE = 64 << 20
"""Empty lines that stand for what is above, in all parts together."""


def is_log(name: str) -> bool:
    """By a file's name alone."""
    suffix = PurePosixPath(name).suffix.lower()
    other = (
        suffix in _NOT_LOGS
        or name == _OWN_REPORT
        or ".tfevents." in name
        or (suffix == ".json" and not _JSON.fullmatch(name))
    )
    if other and _METRICS.fullmatch(name):
        return True
    return not other and not name.startswith(".")


_MAY_BE_DUMP = (".pkl", ".pickle", ".json")
_OF_DUMPS = (b"pg_config", b"pg_status", b"comm_lib_version", b"profiling_name", b'"communicators"')


def _may_be_dump(head: bytes) -> bool:
    """The first bytes look like a recording of collectives."""
    return head[:1] in b"\x80{" and any(word in head for word in _OF_DUMPS)


_MAY_BE_TABLE = (".csv", ".tsv")
_MAY_BE_EXPORT = (".json", *_MAY_BE_TABLE)
_OF_RANK = frozenset({b"rank", b"global_rank"})
_AT_OR_WHERE = frozenset(b"step global_step iteration iter epoch time timestamp host hostname node".split())


def _is_table_of_ranks(head: bytes) -> bool:
    """Its first line names a column for the rank, and one for when or where: somebody measured a job."""
    line = head.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0].lower()
    names = {cell.strip(b" \t\r\"'") for cell in line.split(b"\t" if b"\t" in line else b",")}
    return bool(names & _OF_RANK and names & _AT_OR_WHERE)


def _is_table(head: bytes) -> bool:
    return _is_table_of_ranks(head) or smi.is_table(head)


_MAY_BE_OBJECT = (".yaml", ".yml", ".json")
_DESCRIBED = regex(rb"Name: {2,40}\S{1,253}\r?\n(?:Namespace|Priority|Labels|Roles|Annotations): {2,40}\S")
_OBJECT = regex(rb'^ {0,4}"?apiVersion"?: ', re.M)
_ALIVE = regex(rb'^ {0,12}(?:- )?"?(?:items|creationTimestamp|resourceVersion|managedFields|ownerReferences)"?:', re.M)


def _is_object(head: bytes) -> bool:
    """What a cluster said of its objects (`kubectl describe`, `kubectl get -o yaml`), and no file that makes one."""
    return _DESCRIBED.match(head) is not None or (_OBJECT.search(head) is not None and _ALIVE.search(head) is not None)


def _by_its_head(base: str, head: Callable[[], bytes]) -> bool:
    """A file that is no log by its name, and yet tells of a job."""
    low = base.lower()
    if not low.endswith((*_MAY_BE_DUMP, *_MAY_BE_TABLE, *_MAY_BE_OBJECT)):
        return False
    first = head()
    if low.endswith(_MAY_BE_OBJECT) and _is_object(first):
        return True
    if low.endswith((".yaml", ".yml")):
        return False
    known = _is_table if low.endswith(_MAY_BE_TABLE) else _may_be_dump
    return known(first) or (low.endswith(_MAY_BE_EXPORT) and exports.is_export(first))


Wanted = Callable[[str], bool]
"""Which files of a folder or an archive are read, by their names."""


@dataclass(frozen=True, slots=True)
class Input:
    """An opened stream and its name for people: the path, `a.tar!/x`, or `-`."""

    name: str
    stream: BinaryIO
    plain: bool = False
    """A file as it lies there, which can be opened again by its name."""


@dataclass(slots=True)
class Chosen:
    """Which files of a folder or an archive are logs by their names; the others are counted, and said in one line."""

    where: str
    skipped: list[Skipped]
    wanted: Wanted = is_log
    folder: bool = False
    """Programs in folders are read by `beside`: they are no logs, and not left out."""
    _count: int = 0
    _members: int = 0
    _unsaid: int = 0
    _programs: int = 0
    _answers: int = 0
    _attempts: int = 0
    _notes: int = 0
    _passed_over: Counter[str] = field(default_factory=Counter)
    _said: int = field(init=False)

    def __post_init__(self) -> None:
        self._said = len(self.skipped)

    def wants(self, name: str, head: Callable[[], bytes] = bytes) -> bool:
        """By its name; else, where the head can be looked at, by what it is."""
        base = name.replace("\\", "/").rsplit("/", 1)[-1]
        if len(base) > _MAX_BASE:
            self._passed_over[f"longer than {_MAX_BASE} characters"] += 1
            return False
        if not self.wanted(base) and not _by_its_head(base, head):
            suffix = PurePosixPath(base).suffix.lower()[:_MAX_SUFFIX]
            if suffix == ".py" and self.folder:
                self._programs += 1
            elif base in _OWN_ANSWERS:
                self._answers += 1
            else:
                self._passed_over["hidden" if base.startswith(".") else suffix] += 1
            return False
        self._count += 1
        return self._count <= MAX_FILES

    def only_notes(self, name: str) -> bool:
        """Notebooks and notes are read where a folder holds neither logs nor programs: somebody pasted his there."""
        suffix = PurePosixPath(name).suffix.lower()
        if self._programs or self._count > self._notes or self._notes == _MOST_NOTES:
            return False
        self._passed_over[suffix] -= 1
        self._passed_over += Counter()
        self._count += 1
        self._notes += 1
        return True

    def member(self) -> bool:
        """Once for each member of an archive, whatever it is; False when there were too many."""
        self.trim()
        self._members += 1
        return not self.full

    @property
    def full(self) -> bool:
        return max(self._count, self._members) > MAX_FILES

    def trim(self) -> None:
        """What was said about this folder or archive since it was opened, also by who read it, is kept in bounds."""
        over = len(self.skipped) - self._said - MAX_SKIPPED
        if over > 0:
            del self.skipped[-over:]
            self._unsaid += over

    def done(self) -> None:
        self.trim()
        if self._unsaid:
            self.skipped.append(Skipped(self.where, f"and {self._unsaid} more that were not read"))
        if self.full:
            self.skipped.append(Skipped(self.where, f"more than {MAX_FILES} files: the rest was not read"))
        if self._passed_over:
            most = sorted(self._passed_over.most_common(_MAX_KINDS))
            kinds = ", ".join(f"{n} × {kind}" for kind, n in most)
            kinds += ", and others" if len(self._passed_over) > _MAX_KINDS else ""
            self.skipped.append(Skipped(self.where, f"not logs by their names: {kinds}"))
        elif not self._count and len(self.skipped) == self._said:
            self.skipped.append(Skipped(self.where, self._lack()))

    def inside(self, folder: str) -> None:
        """Once for each folder that is walked: torchrun makes one for each attempt, whether it writes there or not."""
        self._attempts += re.fullmatch(r"attempt_\d+", os.path.basename(folder)) is not None

    def _lack(self) -> str:
        if self._programs:
            return "holds programs, and no logs"
        if self._answers:
            return "holds reports of Paramedic, and no logs"
        return _NOT_REDIRECTED if self._attempts else _NO_FILES


def unpack(name: str, raw: Any, skipped: list[Skipped], wanted: Wanted = is_log) -> Iterator[Input]:
    """Looks at the first bytes, not at the name: compressed streams are unwrapped, archives are walked."""
    stream = SafeStream(raw)
    head = stream.peek()
    if is_zip(head):
        yield from _zip(name, raw, Chosen(name, skipped, wanted))
    elif is_tar(head):
        yield from _tar(stream.buffered(), None, Chosen(name, skipped, wanted))
    elif (opener := unpacker(head)) is not None:
        budget = Budget(lambda: stream.count)
        unpacked = SafeStream(opener(stream.buffered()), budget)
        if is_tar(unpacked.peek()):
            yield from _tar(unpacked.buffered(), budget, Chosen(name, skipped, wanted))
        else:
            yield Input(name, unpacked.buffered())
        _say_if_broken(name, unpacked, skipped)
    elif _HEADING.search(head[:_NEAR_THE_TOP]):
        yield from _joined(name, stream.buffered().read(_MOST_JOINED), skipped)
    elif notebooks.is_notebook(head):
        yield _notebook(name, stream.buffered())
    elif exports.is_export(head[:_NEAR_THE_TOP]):
        yield from _exported(name, stream.buffered(), skipped)
    else:
        yield Input(name, stream.buffered(), plain=isinstance(raw, io.FileIO))
    _say_if_broken(name, stream, skipped)


def _joined(name: str, data: bytes, skipped: list[Skipped]) -> Iterator[Input]:
    """What `tail -n 50 logs/*` prints: each file by itself, on the lines on which it stands."""
    if len(data) == _MOST_JOINED:
        skipped.append(
            Skipped(name, f"of these files, printed one after another, only {_MOST_JOINED >> 20} MiB were read")
        )
    headings = list(_HEADING.finditer(data))
    ends = [heading.start() for heading in headings[1:]] + [len(data)]
    if not 1 < len(headings) <= _MOST_PARTS or len(headings) * data.count(b"\n") > _MOST_ABOVE:
        yield Input(name, _in_memory(data))
        return
    above, counted = 0, 0
    for heading, end in zip(headings, ends, strict=True):
        above, counted = above + data.count(b"\n", counted, heading.end()), heading.end()
        title = heading[1].decode("utf-8", "replace").strip().lstrip("/").replace("..", "")
        yield Input(f"{name}/{title}", _in_memory(b"\n" * above + data[heading.end() : end]))


def _notebook(name: str, stream: BinaryIO) -> Input:
    data = stream.read(notebooks.MOST + 1)
    shown = notebooks.outputs(data) if len(data) <= notebooks.MOST else None
    return Input(name, _in_memory(data if shown is None else shown))


def _exported(name: str, stream: BinaryIO, skipped: list[Skipped]) -> Iterator[Input]:
    """Each stream by itself, as if its host had written a file."""
    data = stream.read(exports.MOST + 1)
    if len(data) > exports.MOST:
        skipped.append(Skipped(name, f"of this export only {exports.MOST >> 20} MiB were read"))
    cut: list[str] = []
    found = exports.streams(data[: exports.MOST], cut)
    skipped += (Skipped(name, why) for why in cut)
    if found:
        del data
    yield from (Input(f"{name}/{title}", _in_memory(lines)) for title, lines in found.items())
    if not found:
        yield Input(name, _in_memory(data))


def _in_memory(data: bytes) -> io.BufferedReader:
    return io.BufferedReader(io.BytesIO(data))


def _tar(stream: BinaryIO, budget: Budget | None, chosen: Chosen) -> Iterator[Input]:
    name, skipped = chosen.where, chosen.skipped
    holes = budget or Budget(lambda: 0)  # of sparse files: an exabyte of them fits into any archive
    try:
        with open_tar(stream) as archive:
            while (member := archive.next()) is not None and chosen.member():
                archive.members = []  # type: ignore[attr-defined]  # a stream is never read again: forget what passed
                shown = f"{name}!/{member.name[:_MAX_NAME]}"
                if member.isdir() or _leads_out(shown, member.name, skipped):
                    continue
                plain = _TarMember(archive, member.size) if member.isreg() and not member.issparse() else None
                if not chosen.wants(member.name, plain.head if plain else bytes):
                    continue
                if plain:
                    yield from _member(shown, plain, budget, skipped)
                elif member.isreg():
                    yield from _member(shown, archive.extractfile(member), holes, skipped)
                else:
                    what = "a link" if member.issym() or member.islnk() else "a device"
                    skipped.append(Skipped(shown, f"{what} inside an archive is not followed"))
    except (*BROKEN, ValueError, OverflowError, RecursionError) as error:
        skipped.append(_damaged(name, reason(error)))
    chosen.done()


def _zip(name: str, raw: Any, chosen: Chosen) -> Iterator[Input]:
    skipped = chosen.skipped
    if not raw.seekable():
        skipped.append(Skipped(name, "a zip archive cannot be read from a pipe: name the file"))
        return
    size = raw.seek(0, os.SEEK_END)
    raw.seek(0)
    budget = Budget(lambda: size)
    try:
        _refuse_endless_list(raw)
        archive = zipfile.ZipFile(raw)
    except (*BROKEN, ValueError, NotImplementedError) as error:
        skipped.append(_damaged(name, reason(error)))
        yield from _salvaged(name, raw, budget, chosen)
    else:
        with archive:
            for info in archive.infolist():
                if not chosen.member():
                    break
                shown = f"{name}!/{info.filename[:_MAX_NAME]}"
                if (
                    info.filename.endswith("/")
                    or _leads_out(shown, info.filename, skipped)
                    or not chosen.wants(info.filename, partial(_head_in, archive, info))
                ):
                    continue
                try:
                    inner = archive.open(info)
                except (*BROKEN, RuntimeError, ValueError) as error:  # encrypted, or a method Python lacks
                    skipped.append(Skipped(shown, f"cannot be unpacked: {reason(error)}"))
                else:
                    yield from _member(shown, inner, budget, skipped)
    chosen.done()


def _head_in(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    try:
        with archive.open(info) as member:
            return member.read(_HEAD)
    except (*BROKEN, RuntimeError, ValueError):
        return b""


def _refuse_endless_list(raw: Any) -> None:
    """zipfile reads the whole list at once; every entry of it has its mark, so the marks can be counted before."""
    end: Any = zipfile._EndRecData(raw)  # type: ignore[attr-defined]
    if end:
        size, at = end[zipfile._ECD_SIZE], end[zipfile._ECD_LOCATION]  # type: ignore[attr-defined]
        raw.seek(max(at - size, 0))
        if size > _MAX_ZIP_LIST or raw.read(size).count(b"PK\x01\x02") > MAX_FILES:
            raise zipfile.BadZipFile(f"its list names more than {MAX_FILES} files")
    raw.seek(0)


_LOCAL_HEADER = struct.Struct("<4s2xHH8xLLHH")  # mark, flags, method, packed size, size, length of name, of extra


def _salvaged(name: str, raw: BinaryIO, budget: Budget, chosen: Chosen) -> Iterator[Input]:
    """A zip archive has its list at the end. Where that was cut off, the members' own headers still tell."""
    raw.seek(0)
    while len(head := raw.read(_LOCAL_HEADER.size)) == _LOCAL_HEADER.size:
        mark, flags, method, packed, _, name_size, extra_size = _LOCAL_HEADER.unpack(head)
        if mark != b"PK\x03\x04" or not chosen.member():
            return
        member = raw.read(name_size).decode("utf-8", "replace")
        start = raw.seek(extra_size, os.SEEK_CUR)
        if flags & 0b1000 or packed == 0xFFFFFFFF:  # sizes stand behind the data: the next member cannot be found
            packed = None
        shown = f"{name}!/{member[:_MAX_NAME]}"
        readable = method in (0, 8) and not flags & 1 and not member.endswith("/")
        if readable and not _leads_out(shown, member, chosen.skipped) and chosen.wants(member):
            yield from _member(shown, _Inflated(raw, packed, method == 8), budget, chosen.skipped)
        if packed is None:
            return
        raw.seek(start + packed)


class _Inflated(io.BufferedIOBase):
    """The data of one zip member that starts where the file stands."""

    def __init__(self, raw: BinaryIO, packed: int | None, deflated: bool) -> None:
        self._raw, self._left = raw, packed
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS) if deflated else None

    def readable(self) -> bool:
        return True

    def read1(self, size: int | None = -1, /) -> bytes:
        most = _CHUNK if size is None or size < 0 else min(size, _CHUNK)
        if self._inflate is None:
            return self._packed(most)
        data = b""
        while not data and not self._inflate.eof and (packed := self._inflate.unconsumed_tail or self._packed(4096)):
            data = self._inflate.decompress(packed, most)
        return data

    def _packed(self, most: int) -> bytes:
        piece = self._raw.read(most if self._left is None else min(self._left, most))
        if self._left is not None:
            self._left -= len(piece)
        return piece


class _TarMember(io.BufferedIOBase):
    """As tarfile's own, but when the archive is cut off it still gives what is there."""

    def __init__(self, archive: tarfile.TarFile, size: int) -> None:
        self._stream: Any = archive.fileobj
        self._left = size
        self._head: bytes = b""

    def readable(self) -> bool:
        return True

    def head(self) -> bytes:
        """The first bytes, which stay to be read."""
        self._head = self._stream.read(min(_HEAD, self._left))
        self._left -= len(self._head)
        return self._head

    def read1(self, size: int | None = -1, /) -> bytes:
        most = _CHUNK if size is None or size < 0 else min(size, _CHUNK)
        if self._head:
            piece, self._head = self._head[:most], self._head[most:]
            return piece
        piece = bytes(self._stream.read(min(most, self._left)))
        self._left -= len(piece)
        if self._left and not piece:
            raise EOFError("cut off before its end")
        return piece


def _member(name: str, inner: Any, budget: Budget | None, skipped: list[Skipped]) -> Iterator[Input]:
    """A file in an archive; it may be compressed once more by itself."""
    stream = SafeStream(inner, budget)
    head = stream.peek()
    opener = unpacker(head)
    if is_zip(head) or is_tar(head):
        skipped.append(Skipped(name, "an archive inside an archive is not opened"))
    elif opener is None:
        yield Input(name, stream.buffered())
    else:
        unpacked = SafeStream(opener(stream.buffered()), budget or Budget(lambda: stream.count))
        if is_tar(unpacked.peek()):
            skipped.append(Skipped(name, "an archive inside an archive is not opened"))
        else:
            yield Input(name, unpacked.buffered())
            _say_if_broken(name, unpacked, skipped)
    _say_if_broken(name, stream, skipped)


def _leads_out(shown: str, member: str, skipped: list[Skipped]) -> bool:
    plain = member.replace("\\", "/")
    if not plain.startswith("/") and ".." not in plain.split("/"):
        return False
    skipped.append(Skipped(shown, "the name points out of the archive: not read"))
    return True


def _say_if_broken(name: str, stream: SafeStream, skipped: list[Skipped]) -> None:
    if stream.broken:
        skipped.append(_damaged(name, stream.broken))


def _damaged(name: str, why: str) -> Skipped:
    return Skipped(name, f"damaged or truncated: {why}; what could be read was used")

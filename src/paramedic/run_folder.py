"""A Run on disk: a folder, or one `.tar.zst` of it. Append-only, versioned, and readable after a crash at any moment.

run.json               version, id, world size, frameworks
events.jsonl           one Event a line
facts.jsonl            one Fact a line
skipped.jsonl          what could not be read
sources/index.jsonl    what was read: name, rank, size, SHA-256
sources/logs/          redacted copies of it, when asked for; sources/copies.jsonl names them
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import secrets
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import zstandard

from paramedic.collect.identity import MAX_WORLD_SIZE
from paramedic.collect.streams import BROKEN, open_tar_zst
from paramedic.errors import ParamedicError
from paramedic.model import Event, Fact, Run, Skipped, Source
from paramedic.redact import Anonymizer, Redactor, clipped, clipped_lines, hosts_in, redact

VERSION = 1
MARK = "paramedic-run"
_LISTS: Mapping[str, type] = {
    "sources/index.jsonl": Source,
    "events.jsonl": Event,
    "facts.jsonl": Fact,
    "skipped.jsonl": Skipped,
}
_MAX_MEMBER = 256 << 20
_ZSTD = b"\x28\xb5\x2f\xfd"
T = TypeVar("T")
Copies = Iterable[tuple[str, bytes]]


# -- writing -------------------------------------------------------------------------------------------------------


class RunWriter:
    """Appends to a Run as things happen; every line is whole or will be ignored."""

    def __init__(self, folder: Path, clean: Redactor = redact) -> None:
        if (folder / "run.json").exists():
            raise ParamedicError(f"{folder}: holds a Run already; name another folder")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._clean = clean
        self._files: dict[str, IO[str]] = {}
        self._write_head({"finished": False})

    def append(self, item: Source | Event | Fact | Skipped) -> None:
        name = next(name for name, kind in _LISTS.items() if isinstance(item, kind))
        if name not in self._files:
            (self._folder / name).parent.mkdir(exist_ok=True)
            self._files[name] = open(self._folder / name, "a", encoding="utf-8")  # noqa: SIM115
        self._files[name].write(_line(asdict(item), self._clean))
        self._files[name].flush()

    def finish(self, run: Run) -> None:
        for file in self._files.values():
            os.fsync(file.fileno())
        self.close()
        self._write_head({"finished": True, **_head(run)})

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _write_head(self, head: Mapping[str, Any]) -> None:
        with whole(self._folder / "run.json") as file:
            file.write((json.dumps({"format": MARK, "version": VERSION, **head}, indent=1) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())


def write(run: Run, folder: Path, clean: Redactor = redact, copies: Copies = ()) -> None:
    """A folder that is there whole or not at all."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ParamedicError(f"{folder}: exists already; name another folder")
    copies = _learned(run, clean, copies)
    new = _beside(folder.absolute())
    try:
        new.parent.mkdir(parents=True, exist_ok=True)
        os.mkdir(new)  # nobody else's folder, and no link to one
    except (OSError, ValueError) as error:
        raise ParamedicError(f"{folder}: cannot be written: {getattr(error, 'strerror', None) or error}") from None
    try:
        with closing(RunWriter(new, clean)) as writer:
            for item in _items(run):
                writer.append(item)
            for name, data in copies:
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).write_bytes(data)
            writer.finish(run)
        new.replace(folder)
    except OSError as error:
        raise ParamedicError(f"{folder}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)


def pack(run: Run, file: Path, clean: Redactor = redact, copies: Copies = ()) -> None:
    """One `.tar.zst`; the head stands first, so that it is known for what it is."""
    copies = _learned(run, clean, copies)
    head = json.dumps({"format": MARK, "version": VERSION, "finished": True, **_head(run)}, indent=1) + "\n"
    with (
        whole(file) as raw,
        zstandard.ZstdCompressor(level=10).stream_writer(raw, closefd=False) as packed,
        tarfile.open(fileobj=cast(IO[bytes], packed), mode="w|") as archive,
    ):
        _add(archive, "run.json", head.encode())
        for name, kind in _LISTS.items():
            lines = (_line(asdict(item), clean) for item in _items(run) if isinstance(item, kind))
            _add(archive, name, "".join(lines).encode())
        for name, data in copies:
            _add(archive, name, data)


def _learned(run: Run, clean: Redactor, copies: Copies) -> Copies:
    """Before anything is written an Anonymizer sees all of it: a name in the last line goes from the first."""
    if not isinstance(clean, Anonymizer):
        return copies
    clean.learn(text for item in _items(run) for text in _texts(asdict(item)))
    return tuple(copies)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


@contextmanager
def whole(path: str | Path) -> Iterator[IO[bytes]]:
    """A file written beside its place and moved there whole; a pipe or device is written to as it is."""
    try:
        if os.path.exists(path) and not os.path.isdir(path) and not os.path.isfile(path):
            with open(path, "wb") as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise ParamedicError(f"{path}: is a folder; name a file")
        new = _beside(target)
        opened = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            with open(opened, "wb") as file:
                yield file
            new.replace(target)
        finally:
            new.unlink(missing_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ParamedicError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from None


def _beside(target: Path) -> Path:
    """A name in the same folder that nobody can guess and put a link at."""
    return target.with_name(f".{target.name[:50]}.{secrets.token_hex(8)}.new")


def _items(run: Run) -> Iterator[Source | Event | Fact | Skipped]:
    yield from run.sources
    yield from run.events
    yield from run.facts
    yield from run.skipped


def _head(run: Run) -> dict[str, Any]:
    return {"id": run.id, "world_size": run.world_size, "frameworks": list(run.frameworks)}


def _line(item: Any, clean: Redactor) -> str:
    return json.dumps(_cleaned(item, clean), ensure_ascii=True, separators=(",", ":")) + "\n"


def _cleaned(value: Any, clean: Redactor) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {key: _cleaned(item, clean) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(item, clean) for item in value]
    return value


# -- reading -------------------------------------------------------------------------------------------------------


def is_run(path: str) -> bool:
    """A folder with our run.json, or an archive that begins with it. A pipe is not looked into: it reads only once."""
    try:
        if os.path.isdir(path):
            return f'"{MARK}"'.encode() in _beginning(os.path.join(path, "run.json"), 200)
        if not _beginning(path, 4).startswith(_ZSTD):
            return False
        with open(path, "rb") as raw:
            head = zstandard.ZstdDecompressor().stream_reader(raw).read(2_000)
        return head.startswith(b"run.json\0") and f'"{MARK}"'.encode() in head
    except (OSError, ValueError, zstandard.ZstdError):
        return False


def _beginning(path: str, size: int) -> bytes:
    if not stat.S_ISREG(os.stat(path).st_mode):
        return b""
    with open(path, "rb") as file:
        return file.read(size)


def read(path: str) -> Run:
    """Raises ParamedicError for a damaged or newer Run; a cut last line of an unfinished one is dropped and said."""
    skipped: list[Skipped] = []
    texts = _from_folder(Path(path)) if os.path.isdir(path) else _from_archive(Path(path), skipped)
    head = _parse_head(path, texts.get("run.json", ""))
    lists = {k: tuple(_parse(f"{path}/{n}", k, texts.pop(n, ""), skipped)) for n, k in _LISTS.items()}
    if not head.get("finished"):
        skipped.append(Skipped(path, "the recording was cut off; what was written before is used"))
    frameworks = head.get("frameworks")
    return Run(
        id=redact(str(head.get("id", "unfinished"))[:64]),
        sources=lists[Source],
        events=lists[Event],
        facts=lists[Fact],
        skipped=(*lists[Skipped], *(Skipped(redact(s.what), redact(s.why)) for s in skipped)),
        world_size=head["world_size"] if _whole_number(head.get("world_size"), 1, MAX_WORLD_SIZE) else None,
        frameworks=tuple(_clipped("", f) for f in frameworks[:100] if isinstance(f, str))
        if isinstance(frameworks, list)
        else (),
    )


def _from_folder(folder: Path) -> dict[str, str]:
    texts = {}
    for name in ("run.json", *_LISTS):
        file = folder / name
        try:
            if os.path.isfile(file):
                with open(file, "rb") as raw:
                    data = raw.read(_MAX_MEMBER + 1)
                _refuse_if_huge(file, len(data))
                texts[name] = data.decode("utf-8", "replace")
        except OSError as error:
            raise ParamedicError(f"{file}: cannot be read: {error.strerror}") from None
    return texts


def _from_archive(file: Path, skipped: list[Skipped]) -> dict[str, str]:
    texts: dict[str, str] = {}
    try:
        with open(file, "rb") as raw:
            archive, unpacked = open_tar_zst(raw)
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]
                if member.isreg() and member.name in ("run.json", *_LISTS) and member.name not in texts:
                    _refuse_if_huge(file / member.name, member.size)
                    inner = cast(IO[bytes], archive.extractfile(member))
                    texts[member.name] = inner.read().decode("utf-8", "replace")
            if unpacked.broken:
                raise EOFError(unpacked.broken)
    except (*BROKEN, ValueError, RecursionError) as error:
        if "events.jsonl" not in texts:
            raise ParamedicError(f"{file}: damaged Run archive: {error}") from None
        skipped.append(Skipped(str(file), f"damaged or truncated: {error}; what could be read was used"))
    return texts


def _refuse_if_huge(name: Path, size: int) -> None:
    if size > _MAX_MEMBER:
        raise ParamedicError(f"{name}: larger than {_MAX_MEMBER >> 20} MiB")


def _parse_head(path: str, text: str) -> dict[str, Any]:
    try:
        head = json.loads(text)
    except (ValueError, RecursionError):
        raise ParamedicError(f"{path}: run.json is no JSON") from None
    if not isinstance(head, dict) or head.get("format") != MARK:
        raise ParamedicError(f"{path}: run.json is not of a Paramedic Run")
    if head.get("version") != VERSION:
        found = repr(head.get("version"))[:40]
        raise ParamedicError(f"{path}: Run format version {found}; this Paramedic reads version {VERSION}: upgrade it")
    return head


def _parse(name: str, kind: Callable[..., T], text: str, skipped: list[Skipped]) -> Iterator[T]:
    damaged: list[int] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield kind(**_clipped("", _checked(kind, json.loads(line))))
        except (ValueError, TypeError, RecursionError):
            if number == len(lines):
                skipped.append(Skipped(name, "the last line was cut off"))
            else:
                damaged.append(number)
    if damaged:
        skipped.append(Skipped(name, f"{len(damaged)} damaged lines left out, the first is line {damaged[0]}"))


def _whole_number(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


_RANGES = {
    "rank": (0, MAX_WORLD_SIZE), "local_rank": (0, MAX_WORLD_SIZE), "attempt": (0, 1 << 31), "line": (1, 1 << 53),
    "first_line": (0, 1 << 53), "seq": (0, 1 << 53), "lines": (0, 1 << 53), "bytes": (0, 1 << 53),
    "pid": (-(1 << 53), 1 << 53),  # below zero: a stand-in where nobody has said it
    "again": (0, 1 << 31), "exitcode": (-(1 << 31), 1 << 31),
    "utc_ns": (-(1 << 63), (1 << 63) - 1), "uncertainty_ns": (0, 1 << 62),
}  # fmt: skip
_LARGEST = 1 << 63
_OPTIONAL = {"rank", "line", "utc_ns", "host", "sha256"}
_TEXT_LISTS = {"frames", "own", "native", "code", "before", "after", "types"}
_NUMBERS = {"at": "seq", "accused": "rank"}
"""Lists of numbers, and what of."""
_TEXTS = {"host", "traceback", "thread", "waits", "state", "process", "wchan"}


def _checked(kind: Callable[..., object], item: Any) -> dict[str, Any]:
    """Types as the model has them: a recording is a stranger's file."""
    if not isinstance(item, dict):
        raise TypeError("not an object")
    for key, value in item.items():
        if key in _RANGES:
            right = _whole_number(value, *_RANGES[key])
        elif key == "fields":
            right = _are_fields(value)
        elif key == "value":
            right = _is_plain(value, _DEEPEST)
        else:
            right = isinstance(value, str)
        if not right and not (value is None and key in _OPTIONAL):
            raise TypeError(key)
    if item.get("kind") == "exit" and kind is Event and not {"exitcode", "pid"} <= item.get("fields", {}).keys():
        raise TypeError("fields")
    return item


# How much a text, and how many of a list's texts, are read: what `collect` itself keeps at most.
_MOST = {
    "text": 16_000, "traceback": 16_000, "frames": 750, "own": 750, "native": 120, "code": 400, "types": 750,
    "before": 400, "after": 400, "what": 16_000, "why": 16_000, "steps": 16_000, "calls": 1 << 20, "table": 1 << 20,
    "seqs": 1 << 18, "open": 1 << 18, "peers": 1 << 18, "peers_open": 1 << 15, "members": 1 << 16,
    "said": 1 << 20, "made": 1 << 18,
}  # fmt: skip
_MOST_TEXT = 4_000
_MOST_ITEMS = {"frames": 60, "own": 60, "native": 8, "code": 3, "types": 60, "before": 8, "after": 8, "at": 64}
_MOST_FIELDS = 40


def _clipped(key: str, value: Any) -> Any:
    """Without secrets and of a bounded size, whoever wrote it; secrets may span the lines of a list."""
    if isinstance(value, str):
        return clipped(value, _MOST.get(key, _MOST_TEXT))
    if isinstance(value, dict):
        return {clipped(name, 100): _clipped(name, item) for name, item in [*value.items()][:_MOST_FIELDS]}
    if not isinstance(value, list):
        return value
    if key in _TEXT_LISTS and value:
        texts = clipped_lines(value, _MOST[key])
        return texts[: _MOST_ITEMS[key]] if key == "after" else texts[-_MOST_ITEMS[key] :]
    return [_clipped(key, item) for item in value[-_MOST_ITEMS.get(key, 64) :]]


def _are_fields(fields: Any) -> bool:
    return isinstance(fields, dict) and all(_is_field(key, value) for key, value in fields.items())


def _is_field(key: str, value: Any) -> bool:
    if key in _TEXT_LISTS:
        return isinstance(value, list) and all(isinstance(text, str) for text in value)
    if key in _NUMBERS:
        return isinstance(value, list) and all(_whole_number(number, *_RANGES[_NUMBERS[key]]) for number in value)
    if key in _RANGES:
        return _whole_number(value, *_RANGES[key])
    return isinstance(value, str) if key in _TEXTS else _is_plain(value)


_DEEPEST = 6


def _is_plain(value: Any, depth: int = 0) -> bool:
    """A text, a number that can be counted with, or lists and tables of them as a node's facts have them."""
    if isinstance(value, list) and depth:
        return all(_is_plain(item, depth - 1) for item in value)
    if isinstance(value, dict) and depth:
        return all(_is_plain(item, depth - 1) for item in value.values())
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str) or (isinstance(value, int) and abs(value) <= _LARGEST)


# -- what a bundle adds --------------------------------------------------------------------------------------------


def archive_name(paths: Iterable[str]) -> str:
    names = (re.sub(r"[^\w.+-]", "_", os.path.basename(os.path.abspath(path))) for path in paths if path != "-")
    return f"{next(filter(None, names), 'logs').lstrip('.')[:100]}.paramedic.tar.zst"


def with_hashes(run: Run) -> Run:
    """Every source that is a plain file gets its SHA-256, so that a bundle can be told to belong to a log."""
    return replace(run, sources=tuple(replace(s, sha256=s.sha256 or _sha256(s.id)) for s in run.sources))


def _sha256(name: str) -> str | None:
    try:
        if not stat.S_ISREG(os.stat(name).st_mode):
            return None
        with open(name, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):  # standard input, a member of an archive, or gone since
        return None


def hosts(run: Run) -> tuple[str, ...]:
    """Every host name that the recording knows by its field, or that its lines show to be one."""
    named = {s.host for s in run.sources} | {e.host for e in run.events} | {e.fields.get("host") for e in run.events}
    shown = hosts_in(
        text for e in run.events for text in (e.text, *e.fields.get("before", ()), *e.fields.get("after", ()))
    )
    return tuple(sorted(str(name) for name in named | shown if name and name != "localhost"))

"""A Run on disk: a folder, or one `.tar.zst` of it. Append-only, versioned, and readable after a crash at any moment.

    run.json               version, id, world size, frameworks
    events.jsonl           one Event a line
    facts.jsonl            one Fact a line
    skipped.jsonl          what could not be read
    sources/index.jsonl    what was read: name, rank, size, SHA-256
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import zstandard

from paramedic.errors import ParamedicError
from paramedic.model import Event, Fact, Run, Skipped, Source
from paramedic.redact import Redactor, redact

VERSION = 1
MARK = "paramedic-run"
_LISTS: Mapping[str, type] = {
    "sources/index.jsonl": Source,
    "events.jsonl": Event,
    "facts.jsonl": Fact,
    "skipped.jsonl": Skipped,
}
_MAX_MEMBER = 1 << 30
_ZSTD = b"\x28\xb5\x2f\xfd"
T = TypeVar("T")


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
            self._files[name] = open(self._folder / name, "a", encoding="utf-8")
        self._files[name].write(_line(asdict(item), self._clean))
        self._files[name].flush()

    def finish(self, run: Run) -> None:
        for file in self._files.values():
            os.fsync(file.fileno())
            file.close()
        self._write_head({"finished": True, **_head(run)})

    def _write_head(self, head: Mapping[str, Any]) -> None:
        new = self._folder / "run.json.new"
        new.write_text(json.dumps({"format": MARK, "version": VERSION, **head}, indent=1) + "\n", "utf-8")
        new.replace(self._folder / "run.json")


def write(run: Run, folder: Path, clean: Redactor = redact) -> None:
    writer = RunWriter(folder, clean)
    for item in _items(run):
        writer.append(item)
    writer.finish(run)


def pack(run: Run, file: Path, clean: Redactor = redact) -> None:
    """One `.tar.zst`, written beside its place and moved there whole."""
    new = file.with_name(file.name + ".new")
    head = json.dumps({"format": MARK, "version": VERSION, "finished": True, **_head(run)}, indent=1) + "\n"
    members = {"run.json": head} | {
        name: "".join(_line(asdict(i), clean) for i in _items(run) if isinstance(i, kind))
        for name, kind in _LISTS.items()
    }
    try:
        with open(new, "wb") as raw, zstandard.ZstdCompressor(level=10).stream_writer(raw) as packed:
            with tarfile.open(fileobj=cast(IO[bytes], packed), mode="w|") as archive:
                for name, text in members.items():
                    data = text.encode("utf-8", "replace")
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
        new.replace(file)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise ParamedicError(f"{file}: cannot be written: {error.strerror}") from None


def is_run(path: str) -> bool:
    """A folder with our run.json, or an archive that begins with it."""
    place = Path(path)
    try:
        if place.is_dir():
            return f'"{MARK}"' in (place / "run.json").read_text("utf-8", "replace")[:200]
        with open(place, "rb") as raw:
            if raw.read(4) != _ZSTD:
                return False
            raw.seek(0)
            return f'"{MARK}"'.encode() in zstandard.ZstdDecompressor().stream_reader(raw).read(2_000)
    except (OSError, ValueError, zstandard.ZstdError):
        return False


def read(path: str) -> Run:
    """Raises ParamedicError for a damaged or newer Run; a cut last line of an unfinished one is dropped and said."""
    texts = _from_folder(Path(path)) if os.path.isdir(path) else _from_archive(Path(path))
    head = _parse_head(path, texts.get("run.json", ""))
    skipped: list[Skipped] = []
    lists = {k: tuple(_parse(path, n, k, texts.get(n, ""), skipped)) for n, k in _LISTS.items()}
    if not head.get("finished"):
        skipped.append(Skipped(path, "the recording was cut off; what was written before is used"))
    return Run(
        id=str(head.get("id", "unfinished")),
        sources=lists[Source],
        events=lists[Event],
        facts=lists[Fact],
        skipped=(*lists[Skipped], *skipped),
        world_size=head.get("world_size") if isinstance(head.get("world_size"), int) else None,
        frameworks=tuple(map(str, head.get("frameworks", ()))),
    )


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


def _from_folder(folder: Path) -> dict[str, str]:
    texts = {}
    for name in ("run.json", *_LISTS):
        file = folder / name
        if file.is_file():
            if file.stat().st_size > _MAX_MEMBER:
                raise ParamedicError(f"{file}: larger than {_MAX_MEMBER >> 20} MiB")
            texts[name] = file.read_text("utf-8", "replace")
    return texts


def _from_archive(file: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    try:
        with open(file, "rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
            with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|") as archive:
                for member in archive:
                    if member.isreg() and member.size <= _MAX_MEMBER and member.name in ("run.json", *_LISTS):
                        inner = cast(IO[bytes], archive.extractfile(member))
                        texts[member.name] = inner.read().decode("utf-8", "replace")
    except (OSError, EOFError, tarfile.TarError, zstandard.ZstdError) as error:
        raise ParamedicError(f"{file}: damaged Run archive: {error}") from None
    return texts


def _parse_head(path: str, text: str) -> dict[str, Any]:
    try:
        head = json.loads(text)
    except ValueError:
        raise ParamedicError(f"{path}: run.json is no JSON") from None
    if not isinstance(head, dict) or head.get("format") != MARK:
        raise ParamedicError(f"{path}: run.json is not of a Paramedic Run")
    if head.get("version") != VERSION:
        raise ParamedicError(
            f"{path}: Run format version {head.get('version')!r}; this Paramedic reads version {VERSION}: upgrade it"
        )
    return head


def _parse(path: str, name: str, kind: Callable[..., T], text: str, skipped: list[Skipped]) -> Iterator[T]:
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield kind(**_checked(kind, json.loads(line)))
        except (ValueError, TypeError, RecursionError):
            why = "the last line was cut off" if number >= len(lines) - 1 else f"line {number} is damaged"
            skipped.append(Skipped(f"{path}/{name}", why))


_OPTIONAL_INT = {"rank", "line", "utc_ns"}
_INT = {"seq", "attempt", "uncertainty_ns", "lines", "bytes"}


def _checked(kind: Callable[..., object], item: Any) -> dict[str, Any]:
    """Types as the model has them: a recording is a stranger's file."""
    if not isinstance(item, dict):
        raise TypeError("not an object")
    for key, value in item.items():
        integer = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
        if key in _INT and not integer or key in _OPTIONAL_INT and not (integer or value is None):
            raise TypeError(key)
        if key == "fields":
            _check_fields(value)
        elif key not in _INT | _OPTIONAL_INT | {"value"} and not isinstance(value, str | None):
            raise TypeError(key)
    return item


def _check_fields(fields: Any) -> None:
    if not isinstance(fields, dict):
        raise TypeError("fields")
    for key, value in fields.items():
        if key in ("frames", "before", "after", "types"):
            if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
                raise TypeError(key)
        elif key in ("exitcode", "pid", "local_rank") and not isinstance(value, int):
            raise TypeError(key)


def archive_name(paths: Iterable[str]) -> str:
    stem = next((Path(p).name for p in paths if p != "-"), "") or "logs"
    return f"{stem}.paramedic.tar.zst"


def with_hashes(run: Run) -> Run:
    """Every source that is a plain file gets its SHA-256, so that a bundle can be told to belong to a log."""
    return replace(run, sources=tuple(replace(s, sha256=s.sha256 or _sha256(s.id)) for s in run.sources))


def _sha256(name: str) -> str | None:
    try:
        with open(name, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:  # standard input, a member of an archive, or gone since
        return None


def hosts(run: Run) -> tuple[str, ...]:
    """Every host name that the recording knows by its field."""
    named = {s.host for s in run.sources} | {e.host for e in run.events} | {e.fields.get("host") for e in run.events}
    return tuple(sorted(str(name) for name in named if name and name != "localhost"))

"""Redacted copies of the logs themselves, for a Run that shall be collected again once the rules have improved."""

from __future__ import annotations

import json
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import BinaryIO

from paramedic.collect.archives import is_log
from paramedic.collect.inputs import open_inputs
from paramedic.model import Run, Skipped
from paramedic.redact import Anonymizer, Names, Redactor

FOLDER = "sources/logs"
INDEX = "sources/copies.jsonl"
EACH = 5 << 20
TOTAL = 50 << 20
_CHUNK = 1 << 20
_PACKED = frozenset((".gz", ".zst", ".bz2", ".xz"))


def copies(paths: Iterable[str], run: Run, clean: Redactor) -> Iterator[tuple[str, bytes]]:
    """(name inside the Run, content) of every log that was read and can be read again; the last one is their index."""
    wanted = {source.id for source in run.sources if source.bytes}
    most = min(EACH, TOTAL // max(len(wanted), 1))
    names: set[str] = set()
    index: list[str] = []
    ignored: list[Skipped] = []
    shown = Names()
    tails: list[tuple[str, bytes, int]] = []
    for item in open_inputs([path for path in paths if _rereadable(path)], ignored):
        source = shown(item.name)
        if source not in wanted:
            continue
        wanted.discard(source)
        tails.append((source, *_tail(item.stream, most)))
    if isinstance(clean, Anonymizer):
        clean.learn(tail.decode("utf-8", "replace") for _, tail, _ in tails)
    for source, tail, left_out in tails:
        name = _name(clean(source), names)
        yield name, clean(tail.decode("utf-8", "replace")).encode("utf-8", "replace")[-most:]
        index.append(json.dumps({"source": clean(source), "copy": name, "bytes_left_out": left_out}) + "\n")
    yield INDEX, "".join(index).encode()


def _rereadable(path: str) -> bool:
    """Standard input and pipes are gone once they were read; a glob is expanded again."""
    try:
        return path != "-" and not stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return True


def _tail(stream: BinaryIO, most: int) -> tuple[bytes, int]:
    """The last whole lines, and how many bytes before them were left out."""
    kept: deque[bytes] = deque()
    size = total = 0
    while chunk := stream.read(_CHUNK):
        kept.append(chunk)
        size, total = size + len(chunk), total + len(chunk)
        while size - len(kept[0]) > most:
            size -= len(kept.popleft())
    data = b"".join(kept)
    if len(data) > most:
        data = data[-most:]
        data = data[data.find(b"\n") + 1 :]
    return data, total - len(data)


def _name(source: str, taken: set[str]) -> str:
    """The path as it was, so that the rank in it is found again, but with nothing in it that leads anywhere else."""
    parts = [part for part in re.split(r"[/\\]", source) if part not in ("", ".", "..", "-")]
    safe = [re.sub(r"^\.", "_.", re.sub(r"[^A-Za-z0-9_.+=,-]", "_", part))[:100] for part in parts[-12:]]
    path = PurePosixPath(FOLDER, *(safe or ["stdin.log"]))
    if path.suffix in _PACKED:
        path = path.with_suffix("")
    if not is_log(path.name):
        path = path.with_name(path.name + ".log")
    name, number = str(path), 1
    while name in taken:
        number += 1
        name = str(path.with_name(f"{path.stem}~{number}{path.suffix}"))
    taken.add(name)
    return name

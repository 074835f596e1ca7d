"""The files of a project folder: bounded, nothing outside of it, no symbolic link followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from paramedic.errors import ParamedicError
from paramedic.model import Skipped
from paramedic.redact import Names, redact

MOST_FILES = 50_000
MOST_BYTES = 2 << 20
_DEEPEST = 40
_NOT_ENTERED = frozenset(
    (
        "node_modules", "__pycache__", "site-packages", "dist-packages", "venv", "env", "wandb", "mlruns",
        "checkpoints", "third_party", "third-party", "vendor", "build", "dist",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class File:
    """`name` is relative to the folder, with `/` between its parts."""

    name: str
    path: str
    size: int


def files(root: str, skipped: list[Skipped]) -> Iterator[File]:
    """In the order of their names. A file that is named itself is the only one."""
    if os.path.isfile(root):
        yield File(os.path.basename(root), root, os.path.getsize(root))
        return
    if not os.path.isdir(root):
        raise ParamedicError(f"{root}: no such file or folder")
    for count, file in enumerate(_below(root, "", os.path.realpath(root), 0, skipped)):
        if count >= MOST_FILES:
            skipped.append(Skipped(root, f"has more than {MOST_FILES:,} files: the rest was not read"))
            return
        yield file


def _below(folder: str, prefix: str, real_root: str, depth: int, skipped: list[Skipped]) -> Iterator[File]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        skipped.append(Skipped(prefix or folder, error.strerror or "cannot be opened"))
        return
    if depth > _DEEPEST:
        skipped.append(Skipped(prefix, f"deeper than {_DEEPEST} folders"))
        return
    for entry in entries:
        name = prefix + entry.name
        if entry.is_symlink():
            _link(entry.path, name, real_root, skipped)
        elif entry.is_dir(follow_symlinks=False):
            if not entry.name.startswith(".") and entry.name not in _NOT_ENTERED and not _is_environment(entry.path):
                yield from _below(entry.path, name + "/", real_root, depth + 1, skipped)
        else:
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                yield File(name, entry.path, status.st_size)
            else:
                skipped.append(Skipped(name, "no plain file"))


def _is_environment(path: str) -> bool:
    return os.path.exists(os.path.join(path, "pyvenv.cfg")) or os.path.exists(os.path.join(path, "conda-meta"))


def _link(path: str, name: str, real_root: str, skipped: list[Skipped]) -> None:
    """What lies inside the folder is read where it lies."""
    target = os.path.realpath(path)
    if target != real_root and not target.startswith(real_root + os.sep):
        skipped.append(Skipped(name, "a symbolic link out of the folder"))
    elif not os.path.exists(target):
        skipped.append(Skipped(name, "a symbolic link to nothing"))


def without_secrets(files: Iterable[File]) -> list[File]:
    """Under names that can be shown, each still with its ending."""
    names = Names()
    parts = ((file, *os.path.splitext(file.name)) for file in files)
    return [replace(file, name=names(stem) + redact(ending)) for file, stem, ending in parts]


def said(skipped: Iterable[Skipped]) -> list[Skipped]:
    return [Skipped(redact(left.what), redact(left.why)) for left in skipped]


def text_of(file: File, skipped: list[Skipped]) -> str | None:
    """None where it is too large, binary, or cannot be opened."""
    if file.size > MOST_BYTES:
        skipped.append(Skipped(file.name, f"larger than {MOST_BYTES >> 20} MB"))
        return None
    try:
        with open(file.path, "rb") as raw:
            data = raw.read(MOST_BYTES)
    except OSError as error:
        skipped.append(Skipped(file.name, error.strerror or "cannot be opened"))
        return None
    if b"\0" in data[:4096]:
        skipped.append(Skipped(file.name, "binary"))
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        skipped.append(Skipped(file.name, f"no UTF-8 at byte {error.start:,}"))
        return None

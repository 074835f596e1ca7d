"""Fixes applied to files: preview as a unified diff, apply whole or not at all, undo to the byte."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from paramedic.edits import CannotEdit, edited
from paramedic.errors import ParamedicError

FOLDER = ".paramedic"
_VERSION = 1
_MOST = 4 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """A change that a finding asks for."""

    rule: str
    file: str
    action: Mapping[str, Any]
    title: str


@dataclass(frozen=True, slots=True)
class Changed:
    """A file with all its changes."""

    file: str
    before: bytes
    after: bytes
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    wanted: Wanted
    why: str


def plan(root: Path, wanted: Iterable[Wanted]) -> tuple[list[Changed], list[Refused]]:
    """The changed texts; nothing is written yet."""
    by_file: dict[str, list[Wanted]] = {}
    for one in wanted:
        by_file.setdefault(one.file, []).append(one)
    changed: list[Changed] = []
    refused: list[Refused] = []
    for file, changes in by_file.items():
        try:
            before = _inside(root, file).read_bytes()
            text = before.decode("utf-8")
        except (OSError, UnicodeDecodeError, CannotEdit) as error:
            refused += [Refused(one, _why(error)) for one in changes]
            continue
        done: list[str] = []
        for one in changes:
            try:
                text = edited(file, text, one.action)
                done.append(one.rule)
            except CannotEdit as error:
                refused.append(Refused(one, str(error)))
        if done:
            changed.append(Changed(file, before, text.encode("utf-8"), tuple(done)))
    return changed, refused


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or " ".join(str(error).split())


def _inside(root: Path, file: str) -> Path:
    """Nothing outside of the folder, through no link."""
    path = root / file
    if (
        os.path.isabs(file)
        or ".." in Path(file).parts
        or not str(path.resolve()).startswith(str(root.resolve()) + os.sep)
    ):
        raise CannotEdit("lies outside of the folder")
    if path.is_symlink() or not stat.S_ISREG(path.lstat().st_mode) or path.lstat().st_size > _MOST:
        raise CannotEdit("is no plain file of sensible size")
    return path


def diff(changed: Iterable[Changed]) -> Iterator[str]:
    for one in changed:
        before, after = (list(StringIO(text.decode("utf-8"), newline="\n")) for text in (one.before, one.after))
        for line in difflib.unified_diff(before, after, f"a/{one.file}", f"b/{one.file}"):
            yield line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"


def apply(root: Path, changed: list[Changed]) -> Path:
    """Originals are put aside first; a file that changed meanwhile stops everything before anything is written."""
    for one in changed:
        if _inside(root, one.file).read_bytes() != one.before:
            raise ParamedicError(f"{one.file}: changed while it was being examined; run it again")
    backup = _backup(root, changed)
    written: list[Changed] = []
    try:
        for one in changed:
            _replace(root / one.file, one.after)
            written.append(one)
    except OSError as error:
        for one in written:
            _replace(root / one.file, one.before)
        shutil.rmtree(backup, ignore_errors=True)
        raise ParamedicError(f"{error.filename}: {error.strerror}; nothing was changed") from None
    return backup


def _backup(root: Path, changed: list[Changed]) -> Path:
    store = root / FOLDER / "undo"
    store.mkdir(parents=True, exist_ok=True)
    ignore = root / FOLDER / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", "utf-8")
    number = max((int(p.name) for p in store.iterdir() if p.name.isdigit()), default=0) + 1
    folder = Path(tempfile.mkdtemp(prefix=".new-", dir=store))
    rows = []
    for index, one in enumerate(changed):
        (folder / str(index)).write_bytes(one.before)
        rows.append({"file": one.file, "before": _digest(one.before), "after": _digest(one.after)})
    (folder / "undo.json").write_text(json.dumps({"version": _VERSION, "files": rows}, indent=1), "utf-8")
    final = store / str(number)
    os.rename(folder, final)
    return final


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _replace(path: Path, data: bytes) -> None:
    """Whole or not at all, with the mode it had."""
    mode = stat.S_IMODE(path.lstat().st_mode)
    handle, temporary = tempfile.mkstemp(prefix=".paramedic-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def undo(root: Path) -> list[str]:
    """Takes back the last `apply`, to the byte. A file that was changed since then stops it."""
    store = root / FOLDER / "undo"
    numbers = sorted(int(p.name) for p in store.iterdir() if p.name.isdigit()) if store.is_dir() else []
    if not numbers:
        raise ParamedicError(f"{root}: there is nothing to undo")
    folder = store / str(numbers[-1])
    files = _manifest(folder)
    for file, _, after in files:
        try:
            data = _inside(root, file).read_bytes()
        except (OSError, CannotEdit) as error:
            raise ParamedicError(f"{file}: {_why(error)}; nothing was undone") from None
        if _digest(data) != after:
            raise ParamedicError(f"{file}: was changed after the fix; nothing was undone. The original: {folder}")
    for index, (file, before, _) in enumerate(files):
        data = (folder / str(index)).read_bytes()
        if _digest(data) != before:
            raise ParamedicError(f"{folder}: the backup of {file} is damaged; nothing was undone")
    for index, (file, _, _) in enumerate(files):
        _replace(root / file, (folder / str(index)).read_bytes())
    shutil.rmtree(folder)
    return [file for file, _, _ in files]


def _manifest(folder: Path) -> list[tuple[str, str, str]]:
    try:
        data = json.loads((folder / "undo.json").read_text("utf-8"))
        return [(str(row["file"]), str(row["before"]), str(row["after"])) for row in data["files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise ParamedicError(f"{folder}: is no backup of a fix") from None

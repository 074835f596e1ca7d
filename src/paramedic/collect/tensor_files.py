"""Files of tensors: torch's zip files, safetensors, torch.distributed.checkpoint's index. Looked into, never loaded."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from paramedic.collect.plain_pickle import Named, NotPlain, outline

MOST_PICKLE = 256 << 20
MOST_HEADER = 100 << 20
_CHUNK = 1 << 22
_SIZES = {
    "Double": 8, "Long": 8, "ComplexDouble": 16, "Float": 4, "Int": 4, "ComplexFloat": 8, "Half": 2, "BFloat16": 2,
    "Short": 2, "Byte": 1, "Char": 1, "Bool": 1,
}  # fmt: skip
_TYPES = {
    "F64": 8, "I64": 8, "U64": 8, "C64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


@dataclass(slots=True)
class TensorFile:
    """`problem` continues a sentence that names the file; empty where it is whole."""

    problem: str = ""
    value: Any = None
    names: frozenset[str] = frozenset()
    keys: list[str] = field(default_factory=list)


def read_torch(path: str, deep: bool) -> TensorFile:
    """torch.save's zip: its pickle is outlined, every storage that it names must be there with its size."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {info.filename: info for info in archive.infolist()}
            index = next((name for name in entries if name.endswith("/data.pkl") or name == "data.pkl"), None)
            if index is None:
                return TensorFile("is a zip without data.pkl: no file of torch.save")
            if entries[index].file_size > MOST_PICKLE:
                return TensorFile("has an index too large to be looked at")
            value, names = outline(archive.read(index))
            prefix = index.removesuffix("data.pkl") + "data/"
            problem = _storages(value, {n.removeprefix(prefix): i.file_size for n, i in entries.items()})
            if deep and not problem:
                bad = archive.testzip()
                problem = f"has a wrong checksum in {bad}" if bad else ""
    except NotPlain as error:
        return TensorFile(f"has an index that {error}")
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error, ValueError, NotImplementedError) as error:
        return _legacy(path, error)
    except OSError as error:
        return TensorFile(f"cannot be read: {error.strerror or error}")
    return TensorFile(problem, value, names, _keys(value))


def _legacy(path: str, error: Exception) -> TensorFile:
    """Before torch 1.6 a file was a row of pickles; a zip that was cut has lost its directory, which is at its end."""
    try:
        with open(path, "rb") as file:
            head = file.read(4)
    except OSError as why:
        return TensorFile(f"cannot be read: {why.strerror or why}")
    if not head:
        return TensorFile("is empty")
    if head.startswith(b"PK"):
        return TensorFile("is cut off or damaged: its directory is missing")
    return TensorFile() if head[0] == 0x80 else TensorFile(f"is no file of torch.save ({error})")


def _storages(value: Any, entries: Mapping[str, int]) -> str:
    for pid in storages(value):
        if len(pid) < 5 or pid[0] != "storage" or not isinstance(pid[4], int):
            continue
        kind = pid[1].name.rsplit(".", 1)[-1].removesuffix("Storage") if isinstance(pid[1], Named) else ""
        size = entries.get(str(pid[2]))
        if size is None:
            return f"names the storage {pid[2]}, which it does not hold"
        if kind in _SIZES and size < pid[4] * _SIZES[kind]:
            return f"holds {size} of {pid[4] * _SIZES[kind]} bytes of the storage {pid[2]}"
    return ""


def storages(value: Any) -> Iterator[tuple[Any, ...]]:
    """All that is named from outside of the pickle."""
    waiting, seen = [value], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Named):
            if one.name == "persistent":
                yield one.args
            waiting += [*one.args, *one.items, one.state]
        elif isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += list(one)


def _keys(value: Any) -> list[str]:
    pairs = plain_dict(value)
    return [str(key) for key in pairs] if pairs is not None else []


def plain_dict(value: Any) -> dict[Any, Any] | None:
    """A dict, or what an OrderedDict would have become."""
    if isinstance(value, dict):
        return value
    if isinstance(value, Named) and value.name.endswith("OrderedDict"):
        return dict(item for item in value.items if isinstance(item, tuple) and len(item) == 2)
    return None


def read_safetensors(path: str) -> TensorFile:
    """Its header says where each tensor lies: all of the file, without gaps, and no more."""
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(size, MOST_HEADER):
                return TensorFile(
                    "is cut off within its header" if length < MOST_HEADER else "has no header of safetensors"
                )
            header = json.loads(file.read(length))
    except (struct.error, ValueError, RecursionError):
        return TensorFile("has no readable header" if os.path.getsize(path) else "is empty")
    except OSError as error:
        return TensorFile(f"cannot be read: {error.strerror or error}")
    return _laid_out(header, size - 8 - length)


def _laid_out(header: Any, size: int) -> TensorFile:
    at, keys = 0, []
    try:
        tensors = {str(name): one for name, one in header.items() if name != "__metadata__"}
        for name, one in sorted(tensors.items(), key=lambda item: item[1]["data_offsets"][0]):
            start, end = one["data_offsets"]
            count = 1
            for extent in one["shape"]:
                count *= extent
            if start != at or end < start:
                return TensorFile(f"has a gap or overlap before {name[:120]}")
            if one["dtype"] in _TYPES and end - start != count * _TYPES[one["dtype"]]:
                return TensorFile(f"has another size for {name[:120]} than its shape")
            at = end
            keys.append(name)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return TensorFile("has a header that is none of safetensors")
    if at > size:
        return TensorFile(f"is cut off: {size:,} of {at:,} bytes of tensors are there", keys=keys)
    return TensorFile("holds more bytes than its header knows" if at < size else "", keys=keys)


@dataclass(frozen=True, slots=True)
class Piece:
    """Where torch.distributed.checkpoint has put one piece of a tensor."""

    file: str
    offset: int
    length: int


def read_index(path: str) -> tuple[str, list[Piece], frozenset[str]]:
    """`.metadata` of torch.distributed.checkpoint: (what is wrong, the pieces, the names that it asks for)."""
    try:
        if os.path.getsize(path) > MOST_PICKLE:
            return "is too large to be looked at", [], frozenset()
        with open(path, "rb") as file:
            value, names = outline(file.read())
    except NotPlain as error:
        return str(error), [], frozenset()
    except OSError as error:
        return f"cannot be read: {error.strerror or error}", [], frozenset()
    state = value.state if isinstance(value, Named) else None
    stored = state.get("storage_data") if isinstance(state, dict) else None
    if not isinstance(stored, dict):
        return "is no index of torch.distributed.checkpoint", [], names
    pieces = [piece for one in stored.values() if (piece := _piece(one))]
    return ("" if len(pieces) == len(stored) else "has places that cannot be read"), pieces, names


def _piece(one: Any) -> Piece | None:
    state = one.state if isinstance(one, Named) else None
    try:
        return Piece(str(state["relative_path"]), int(state["offset"]), int(state["length"]))  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        return None


def sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()

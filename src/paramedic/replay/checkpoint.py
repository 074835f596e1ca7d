"""The tensors of a checkpoint, by name: folders of torch.distributed.checkpoint, safetensors, files of torch.save.

Nothing in them is run: pickles are outlined, and the bytes of tensors are read where they lie.
"""

from __future__ import annotations

import io
import json
import math
import os
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paramedic.collect.checkpoints import TENSORS, listed
from paramedic.collect.plain_pickle import Named, NotPlain, outline
from paramedic.collect.tensor_files import plain_dict, read_safetensors, read_torch
from paramedic.errors import ParamedicError
from paramedic.model import Skipped
from paramedic.rank import prints

INDEX = ".metadata"
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}  # fmt: skip
_STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}  # fmt: skip
_DEEPEST = 40
_MOST = 1_000_000


class Odd(Exception):  # noqa: N818
    """A tensor that is not as it should be; the text continues a sentence that names it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """All of a tensor, or a part of it."""

    begins: tuple[int, ...] | None
    """Where in the whole; None where nothing says so."""
    shape: tuple[int, ...]
    load: Callable[[], Any]


@dataclass(slots=True)
class Checkpoint:
    path: str
    pieces: dict[str, list[Piece]] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)

    def add(self, name: str, piece: Piece) -> None:
        self.pieces.setdefault(name, []).append(piece)


def read(path: str) -> Checkpoint:
    found = Checkpoint(path)
    if os.path.isfile(path):
        _file(found, path)
        if found.skipped:
            raise ParamedicError(f"{path}: {found.skipped[0].why}")
    elif os.path.isdir(path):
        _folder(found)
    else:
        raise ParamedicError(f"{path}: no such recording or checkpoint")
    if not found.pieces:
        raise ParamedicError(
            f"{path}: neither a recording nor a checkpoint that can be read (a folder of torch.distributed.checkpoint, "
            "safetensors, a file of torch.save)"
        )
    return found


def _folder(found: Checkpoint) -> None:
    names = dict(listed(found.path, found.skipped))
    if INDEX in names:
        _distributed(found, names)
        return
    for name in names:
        if name.endswith((".safetensors", *TENSORS)):
            _file(found, os.path.join(found.path, name))


def _file(found: Checkpoint, path: str) -> None:
    try:
        if path.endswith(".safetensors"):
            pieces = list(_safetensors(path))
        else:
            pieces = list(_saved(path))
    except (Odd, NotPlain) as error:
        found.skipped.append(Skipped(path, str(error)))
        return
    for name, piece in pieces:
        found.add(name, piece)


# -- safetensors ---------------------------------------------------------------------------------------------------


def _safetensors(path: str) -> Iterator[tuple[str, Piece]]:
    problem = read_safetensors(path).problem
    if problem:
        raise Odd(problem)
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    for name, one in header.items():
        if name != "__metadata__" and one["dtype"] in _DTYPES:
            start, end = one["data_offsets"]
            shape = tuple(one["shape"])
            yield name, Piece(None, shape, _raw(path, 8 + length + start, end - start, _DTYPES[one["dtype"]], shape))


def _raw(path: str, at: int, size: int, dtype: str, shape: tuple[int, ...]) -> Callable[[], Any]:
    def load() -> Any:
        with open(path, "rb") as file:
            file.seek(at)
            return prints.tensor_from(file.read(size), dtype, shape)

    return load


# -- torch.save ----------------------------------------------------------------------------------------------------


def _saved(path: str) -> Iterator[tuple[str, Piece]]:
    read = read_torch(path, deep=False)
    if read.problem:
        raise Odd(read.problem)
    if read.value is None:
        raise Odd("is a row of pickles, as torch saved before 1.6: save it anew")
    for name, one in _tensors(read.value):
        yield name, Piece(None, _layout(one)[2], lambda one=one: _of_zip(path, one))  # type: ignore[misc]


def _tensors(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Named]]:
    """Every tensor of an outlined pickle, under the keys that lead to it."""
    pairs = plain_dict(value)
    if depth > _DEEPEST:
        return
    if pairs is not None:
        for key, one in pairs.items():
            plain = isinstance(key, str | int) and key not in ("_local_tensor", "_spec")
            yield from _tensors(one, f"{path}.{key}" if path and plain else str(key) if plain else path, depth + 1)
    elif isinstance(value, list | tuple):
        for place, one in enumerate(value):
            yield from _tensors(one, f"{path}.{place}" if path else str(place), depth + 1)
    elif isinstance(value, Named) and _is_tensor(value):
        yield path, value
    elif isinstance(value, Named):
        for one in (*value.args, value.state):
            if isinstance(one, Named | dict | tuple):
                yield from _tensors(one, path, depth + 1)


def _is_tensor(value: Named) -> bool:
    return value.name in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3") and len(value.args) >= 4


def _layout(one: Named) -> tuple[Named, int, tuple[int, ...], tuple[int, ...], str]:
    """(its storage, where it begins there, shape, strides, type); bounded by what the storage holds."""
    storage, begins, shape, strides = one.args[:4]
    shape = shape.args[0] if isinstance(shape, Named) and shape.args else shape
    kind = one.args[6] if one.name.endswith("_v3") and len(one.args) > 6 else None
    try:
        dtype = kind.name.removeprefix("torch.") if isinstance(kind, Named) else _dtype(storage)
        numbers = [begins, *shape, *strides]
        if not all(isinstance(n, int) and 0 <= n < 1 << 62 for n in numbers) or len(shape) != len(strides):
            raise ValueError
    except (TypeError, ValueError, AttributeError, IndexError, KeyError):
        raise Odd("holds a tensor without a usable layout") from None
    return storage, begins, tuple(shape), tuple(strides), dtype


def _dtype(storage: Named) -> str:
    return _STORAGES[storage.args[1].name.rsplit(".", 1)[-1].removesuffix("Storage")]


def _of_zip(file: str | io.BytesIO, one: Named) -> Any:
    import torch

    storage, begins, shape, strides, dtype = _layout(one)
    with zipfile.ZipFile(file) as archive:
        index = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        info = archive.getinfo(f"{index.removesuffix('data.pkl')}data/{storage.args[2]}")
        if info.compress_type != zipfile.ZIP_STORED:
            raise Odd("is compressed, which torch never does")
        data = archive.read(info)
    flat = prints.tensor_from(data, dtype, [len(data) // torch.empty(0, dtype=getattr(torch, dtype)).element_size()])
    if math.prod(shape) > max(flat.numel(), 1):
        raise Odd("is larger than its storage")
    return flat.as_strided(shape, strides, begins)


# -- torch.distributed.checkpoint ----------------------------------------------------------------------------------


def _distributed(found: Checkpoint, names: Mapping[str, int]) -> None:
    with open(os.path.join(found.path, INDEX), "rb") as file:
        try:
            value, _ = outline(file.read(256 << 20))
        except NotPlain as error:
            raise ParamedicError(f"{found.path}/{INDEX}: {error}") from None
    state = value.state if isinstance(value, Named) and isinstance(value.state, dict) else {}
    about, stored = state.get("state_dict_metadata"), state.get("storage_data")
    if not isinstance(about, dict) or not isinstance(stored, dict):
        raise ParamedicError(f"{found.path}/{INDEX}: is no index of torch.distributed.checkpoint")
    sizes = {(name, begins): shape for name, one in about.items() for begins, shape in _chunks(one)}
    for index, place in list(stored.items())[:_MOST]:
        try:
            name, begins = str(index.state["fqn"]), _size(index.state.get("offset"))
            file, at, length = (place.state[key] for key in ("relative_path", "offset", "length"))
            shape = sizes.get((name, begins))
            if shape is None:
                continue  # a value that is no tensor
            if str(file) not in names or not 0 <= at <= at + length <= names[str(file)]:
                raise Odd(f"its part {begins} lies in {str(file)[:120]}, which is missing or cut off")
            found.add(name, Piece(begins, shape, _chunk(os.path.join(found.path, str(file)), at, length)))
        except Odd as error:
            found.skipped.append(Skipped(name, str(error)))
        except (KeyError, TypeError, ValueError, AttributeError):
            found.skipped.append(Skipped(found.path, "its index has a place that cannot be read"))


def _chunks(one: Any) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    chunks = one.state.get("chunks") if isinstance(one, Named) and isinstance(one.state, dict) else None
    for chunk in chunks if isinstance(chunks, list) else ():
        said = chunk.state if isinstance(chunk, Named) else None
        if isinstance(said, dict):
            try:
                yield _size(said["offsets"]), _size(said["sizes"])
            except (KeyError, TypeError, ValueError):
                continue


def _size(value: Any) -> tuple[int, ...]:
    numbers = value.args[0] if isinstance(value, Named) and value.args else () if isinstance(value, Named) else value
    found = tuple(numbers or ())
    if not all(isinstance(number, int) and number >= 0 for number in found):
        raise ValueError("no size")
    return found


def _chunk(path: str, at: int, length: int) -> Callable[[], Any]:
    """Each part is a small file of torch.save within a large one."""

    def load() -> Any:
        with open(path, "rb") as file:
            file.seek(at)
            data = io.BytesIO(file.read(length))
        with zipfile.ZipFile(data) as archive:
            index = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            if archive.getinfo(index).file_size > _MOST:
                raise Odd("has an index far larger than one tensor needs")
            value, _ = outline(archive.read(index))
        one = next((tensor for _, tensor in _tensors(value)), None)
        if one is None:
            raise Odd("holds no tensor")
        return _of_zip(data, one)

    return load


# -- parts ---------------------------------------------------------------------------------------------------------


def region(pieces: Sequence[Piece], begins: Sequence[int], shape: Sequence[int]) -> Any:
    """That part of the whole, put together from whatever parts there are; None where some of it is missing."""
    import torch

    out, filled = None, 0
    for piece in pieces:
        at = piece.begins if piece.begins is not None else (0,) * len(piece.shape)
        if len(at) != len(shape):
            continue
        spans = [(max(a, b), min(a + n, b + m)) for a, n, b, m in zip(begins, shape, at, piece.shape, strict=True)]
        if any(low >= high for low, high in spans):
            continue
        loaded = piece.load()
        if out is None:
            if math.prod(shape) > _MOST * 4096:
                raise Odd("is far too large")
            out = torch.empty(list(shape), dtype=loaded.dtype)
        there = tuple(slice(low - b, high - b) for (low, high), b in zip(spans, at, strict=True))
        here = tuple(slice(low - a, high - a) for (low, high), a in zip(spans, begins, strict=True))
        out[here] = loaded[there]
        filled += math.prod(high - low for low, high in spans)
    return out if out is not None and filled == out.numel() else None

"""Fingerprints of tensors: the same on every device, cheap enough for each collective, and sensitive to position.

Words of eight bytes are summed by row and by column, exactly and in any order, and the sums are hashed. One changed
word changes both; a permutation changes at least one, unless it swaps the corners of a rectangle.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
import threading
from collections.abc import Iterable
from typing import Any

NAME = "sums-1024-sha256"
_ROW = 8192  # bytes
_COLUMNS = _ROW // 8
_SMALL = 2 * _ROW
_BLOCK = 128  # rows, 1 MiB: fits into the cache of a processor's core
LENGTH = 32  # hexadecimal digits
_own = threading.local()


def of(tensors: Iterable[Any]) -> str:
    return _read(tensors, finite=False)[0]


def look(tensors: Iterable[Any]) -> tuple[str, bool]:
    """The fingerprint, and whether all values are finite; the memory is read once for both."""
    return _read(tensors, finite=True)


def each(pairs: list[tuple[str, Any]]) -> dict[str, str]:
    """By name; what lies at one place under several names (a parameter, and what its optimizer holds) is read once."""
    seen: dict[Any, str] = {}
    found: dict[str, str] = {}
    for name, tensor in pairs:
        place = tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()
        if place not in seen:
            seen[place] = of([tensor])
        found[name] = seen[place]
    return found


def of_bytes(data: Any) -> str:
    return hashlib.sha256(data, usedforsecurity=False).hexdigest()[:LENGTH]


def is_reading() -> bool:
    """Whether the operations that run now on this thread are those of a fingerprint, not the program's."""
    return bool(getattr(_own, "reading", False))


def _read(tensors: Iterable[Any], finite: bool) -> tuple[str, bool]:
    _own.reading = True
    try:
        return _fingerprint(tensors, finite)
    finally:
        _own.reading = False


def _fingerprint(tensors: Iterable[Any], finite: bool) -> tuple[str, bool]:
    whole = hashlib.sha256(usedforsecurity=False)
    is_good = True
    for tensor in tensors:
        flat = bytes_of(tensor)
        if flat.numel() <= _SMALL:
            whole.update(view(flat))
            is_good = is_good and (not finite or is_finite(tensor))
        else:
            is_good = _add(whole, flat, tensor, finite and _has_fractions(tensor)) and is_good
    return whole.hexdigest()[:LENGTH], is_good


def _add(whole: Any, flat: Any, tensor: Any, finite: bool) -> bool:
    """Block by block: what the first sum has brought into the processor's cache, the others find there."""
    torch = sys.modules["torch"]
    if flat.storage_offset() % 8:
        flat = flat.clone()
    count = flat.numel() // _ROW
    words = flat[: count * _ROW].view(torch.int64).view(-1, _COLUMNS)
    values = flat.view(tensor.dtype) if finite else None
    sums = torch.empty(count + _COLUMNS, dtype=torch.int64, device=flat.device)
    step = _BLOCK if flat.device.type == "cpu" else count
    each = step * _ROW // tensor.element_size()
    columns, totals = [], []
    for number, first in enumerate(range(0, count, step)):
        block = words[first : first + step]
        torch.sum(block, 1, out=sums[first : min(first + step, count)])
        columns.append(block.sum(0))
        if values is not None:
            last = None if first + step >= count else (number + 1) * each
            totals.append(_total(values[number * each : last]))
    torch.sum(torch.stack(columns), 0, out=sums[count:])
    whole.update(view(bytes_of(sums)))
    if tensor.element_size() >= 8:  # two flipped signs of doubles would cancel out in the others
        whole.update(view(bytes_of((words >> 32).sum(1))))
    whole.update(view(flat[count * _ROW :]))
    return not totals or bool(torch.isfinite(torch.stack(totals)).all()) or is_finite(tensor)


def bytes_of(tensor: Any) -> Any:
    """Its bytes as a flat tensor. Never by `.numpy()`, after which FSDP cannot resize the storage any more."""
    torch = sys.modules["torch"]
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    return plain.contiguous().view(-1).view(torch.uint8)


def view(flat: Any) -> Any:
    """A buffer over a flat tensor of bytes, which it keeps alive."""
    size = flat.numel()
    if not size:
        return b""
    flat = flat.cpu()
    buffer = (ctypes.c_char * size).from_address(flat.data_ptr())
    buffer.tensor = flat
    return memoryview(buffer).cast("B")


def is_finite(tensor: Any) -> bool:
    """A sum is quick, and not a number if one of its terms is none; only then each is looked at."""
    torch = sys.modules["torch"]
    if not _has_fractions(tensor):
        return True
    plain = tensor.detach()
    return bool(torch.isfinite(_total(plain))) or bool(torch.isfinite(plain).all())


def _has_fractions(tensor: Any) -> bool:
    return bool((tensor.is_floating_point() or tensor.is_complex()) and tensor.element_size() > 1 and tensor.numel())


def _total(plain: Any) -> Any:
    torch = sys.modules["torch"]
    return plain.sum(dtype=torch.float32 if plain.is_floating_point() and plain.element_size() < 8 else None)


def kind(tensor: Any) -> str:
    return str(tensor.dtype).replace("torch.", "")


def tensor_from(data: bytes, dtype: str, shape: Iterable[int]) -> Any:
    torch = sys.modules["torch"]
    wanted = getattr(torch, dtype, None)
    if not isinstance(wanted, torch.dtype):
        raise ValueError(f"{dtype}: no type of a tensor")
    shape = list(shape)
    if not data:
        return torch.empty(shape, dtype=wanted)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(wanted).reshape(shape)

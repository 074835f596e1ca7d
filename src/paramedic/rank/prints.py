"""Fingerprints of tensors: the same on every device, cheap enough for each collective, and sensitive to position.

Words of eight bytes are summed by row and by column, exactly and in any order, and the sums are hashed. One changed
word changes both; a permutation changes at least one, unless it swaps the corners of a rectangle.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Iterable
from typing import Any

NAME = "sums-1024-sha256"
_ROW = 8192  # bytes
_SMALL = 2 * _ROW
LENGTH = 32  # hexadecimal digits


def of(tensors: Iterable[Any]) -> str:
    whole = hashlib.sha256(usedforsecurity=False)
    for tensor in tensors:
        _add(whole, tensor)
    return whole.hexdigest()[:LENGTH]


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


def _add(whole: Any, tensor: Any) -> None:
    flat = bytes_of(tensor)
    size = flat.numel()
    if size <= _SMALL:
        whole.update(view(flat))
        return
    if flat.storage_offset() % 8:
        flat = flat.clone()
    torch = sys.modules["torch"]
    words = flat[: size // _ROW * _ROW].view(torch.int64).view(-1, _ROW // 8)
    sums = [words.sum(1), words.sum(0)]
    if tensor.element_size() >= 8:
        sums.append((words >> 32).sum(1))  # two flipped signs of doubles would cancel out in the others
    for one in sums:
        whole.update(view(bytes_of(one)))
    whole.update(view(flat[size // _ROW * _ROW :]))


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
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.element_size() < 2 or not tensor.numel():
        return True
    plain = tensor.detach()
    wide = torch.float32 if tensor.is_floating_point() and tensor.element_size() < 8 else None
    return bool(torch.isfinite(plain.sum(dtype=wide))) or bool(torch.isfinite(plain).all())


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

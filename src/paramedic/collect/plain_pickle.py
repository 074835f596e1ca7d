"""Pickles of plain values. A pickle is a program that may call anything; this reader lets it call nothing."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Never

_SPARE = 1 << 30
_PER_BYTE = 64


class NotPlain(Exception):  # noqa: N818
    """It wants more than plain values, or is damaged; the text continues a sentence that names the file."""


class _Plain(pickle.Unpickler):
    """No class, function, extension or outside object can be named: nothing is left that could be called."""

    def find_class(self, module: str, name: str, /) -> Never:
        raise NotPlain(f"asks for {module[:60]}.{name[:60]}, which plain data never does: refused")

    def persistent_load(self, pid: Any, /) -> Never:
        raise NotPlain("asks for something outside of itself: refused")


def load(data: bytes) -> Any:
    """Raises NotPlain for whatever is not whole and plain."""
    try:
        with _bounded(len(data)):
            return _Plain(io.BufferedReader(io.BytesIO(data), max(len(data), 1))).load()
    except NotPlain:
        raise
    except MemoryError:
        raise NotPlain("asks for far more memory than its size: refused") from None
    except Exception as error:  # a damaged pickle raises whatever its rubbish means
        cut = "cut off" if isinstance(error, EOFError) or not data.endswith(b".") else "damaged"
        raise NotPlain(f"is {cut}") from None


@contextmanager
def _bounded(size: int) -> Iterator[None]:
    """A few bytes can ask for gigabytes, so memory is limited meanwhile."""
    before = _limit(size)
    try:
        yield
    finally:
        if before is not None:
            _set_limit(before)


def _limit(size: int) -> tuple[int, int] | None:
    if sys.platform != "linux":
        return None
    import resource

    try:
        with open("/proc/self/statm", "rb") as statm:
            used = int(statm.read().split(b" ", 1)[0]) * resource.getpagesize()
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = used + size * _PER_BYTE + _SPARE
        if soft != resource.RLIM_INFINITY and soft <= wanted:
            return None
        resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    except (OSError, ValueError):
        return None
    return soft, hard


def _set_limit(limit: tuple[int, int]) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, limit)

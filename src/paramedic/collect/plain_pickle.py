"""Pickles of plain values. A pickle is a program that may call anything; this reader lets it call nothing."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Never

_SPARE = 1 << 30
_PER_BYTE = 64


class NotPlain(Exception):  # noqa: N818
    """It wants more than plain values, or is damaged; the text continues a sentence that names the file."""


class Named:
    """What a pickle would have made of something by name: its name, what it would have been called with, its state."""

    __slots__ = ("args", "items", "name", "state")

    def __init__(self, name: str, args: tuple[Any, ...] = ()) -> None:
        self.name, self.args = name, args
        self.items: list[Any] = []
        self.state: Any = None

    def __call__(self, *args: Any, **more: Any) -> Named:
        return Named(self.name, args)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def __hash__(self) -> int:
        return id(self)


class _Outline(pickle._Unpickler):
    """Every name is a Named: nothing of the pickle's own choosing is imported or called.

    The unpickler written in Python, for only there a class can be made (`NEWOBJ`) without being one.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.names: set[str] = set()

    def find_class(self, module: str, name: str, /) -> Any:
        self.names.add(f"{module}.{name}"[:200])
        return Named(f"{module}.{name}"[:200])

    def persistent_load(self, pid: Any, /) -> Any:
        return Named("persistent", pid if isinstance(pid, tuple) else (pid,))

    def load_newobj(self) -> None:
        args = self.stack.pop()  # type: ignore[attr-defined]
        self.stack[-1] = _made(self.stack[-1], args)  # type: ignore[attr-defined]

    def load_newobj_ex(self) -> None:
        self.stack.pop()  # type: ignore[attr-defined]
        self.load_newobj()

    def load_reduce(self) -> None:
        args = self.stack.pop()  # type: ignore[attr-defined]
        self.stack[-1] = _made(self.stack[-1], args)  # type: ignore[attr-defined]

    def load_obj(self) -> None:
        args = self.pop_mark()  # type: ignore[attr-defined]
        self.append(_made(args[0], tuple(args[1:])))  # type: ignore[attr-defined]

    def load_build(self) -> None:
        state = self.stack.pop()  # type: ignore[attr-defined]
        if isinstance(self.stack[-1], Named):  # type: ignore[attr-defined]
            self.stack[-1].state = state  # type: ignore[attr-defined]

    def get_extension(self, code: int) -> None:
        raise NotPlain("asks for a registered extension: refused")


for _code, _load in (
    (pickle.NEWOBJ, _Outline.load_newobj),
    (pickle.NEWOBJ_EX, _Outline.load_newobj_ex),
    (pickle.REDUCE, _Outline.load_reduce),
    (pickle.OBJ, _Outline.load_obj),
    (pickle.BUILD, _Outline.load_build),
):
    _Outline.dispatch[_code[0]] = _load


def _made(what: Any, args: Any) -> Named:
    if not isinstance(what, Named) or not isinstance(args, tuple):
        raise NotPlain("calls something that is no name: refused")
    return Named(what.name, args)


def outline(data: bytes) -> tuple[Any, frozenset[str]]:
    """What a pickle holds, with a Named for everything that is no plain value, and all names that it asks for."""
    reader = _Outline(io.BytesIO(data))
    try:
        with _bounded(len(data)):
            return reader.load(), frozenset(reader.names)
    except NotPlain:
        raise
    except MemoryError:
        raise NotPlain("asks for far more memory than its size: refused") from None
    except Exception as error:
        cut = "cut off" if isinstance(error, EOFError) or not data.endswith(b".") else "damaged"
        raise NotPlain(f"is {cut}") from None


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

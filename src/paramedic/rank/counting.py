"""Which step of an optimizer is a step of the program, the same on every rank."""

from __future__ import annotations

import weakref
from typing import Any

LOOKS = (1, 2, 4, 8, 16, 64)
"""Steps before which parameters and gradients are looked at."""
_LATE = 32
"""An optimizer that comes after so many steps follows on others; one that comes before works beside them."""


class Known:
    """Numbers for optimizers, as they come. An address that is used again belongs to another one."""

    def __init__(self) -> None:
        self.count = 0
        self._at: dict[int, tuple[weakref.ref[Any], int]] = {}

    def number(self, optimizer: Any) -> int:
        reference, number = self._at.get(id(optimizer), (None, 0))
        if reference is None or reference() is not optimizer:
            number, self.count = self.count, self.count + 1
            self._at[id(optimizer)] = weakref.ref(optimizer), number
        return number


class Steps:
    """Programs with two optimizers step once for both. Where one takes another's place, its steps are counted on."""

    def __init__(self) -> None:
        self._taken: dict[int, tuple[weakref.ref[Any], int]] = {}
        """By each optimizer, by its address."""
        self._first: list[weakref.ref[Any]] = []
        """The first parameter of each."""

    def is_new(self, optimizer: Any, steps: int) -> bool:
        """It has stepped: is that one more than the `steps` there were?"""
        reference, taken = self._taken.get(id(optimizer), (None, 0))
        if reference is None or reference() is not optimizer:
            reference, taken = weakref.ref(optimizer), steps if steps >= _LATE or self._succeeds(optimizer) else 0
        self._taken[id(optimizer)] = reference, taken + 1
        return taken + 1 > steps

    def jump(self, by: int) -> None:
        self._taken = {at: (reference, taken + by) for at, (reference, taken) in self._taken.items()}

    def _succeeds(self, optimizer: Any) -> bool:
        first = next((p for group in optimizer.param_groups for p in group["params"]), None)
        if first is None or any(reference() is first for reference in self._first):
            return first is not None
        self._first.append(weakref.ref(first))
        return False

"""What several detectors ask of one Run is worked out once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from paramedic.model import Run

T = TypeVar("T")


def once(function: Callable[[Run], T]) -> Callable[[Run], T]:
    """Remembers the answer for the last Run that was asked about, and does not keep that Run alive."""
    last: list[tuple[weakref.ref[Run], T]] = []

    @wraps(function)
    def asked(run: Run) -> T:
        for known, value in last:
            if known() is run:
                return value
        value = function(run)
        last[:] = [(weakref.ref(run), value)]
        return value

    return asked

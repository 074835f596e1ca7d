"""What torch's compiler may read of us: a way around. All else here it is told to leave alone."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

_LEFT_ALONE = ("agent", "box", "conduct", "hooks", "models", "recomputing", "sentinels")


def unless_compiling(function: Callable[..., Any], watched: Callable[..., Any]) -> Callable[..., Any]:
    """What we put in the place of a function of torch; inside of what is compiled, the function itself."""
    torch = sys.modules["torch"]

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*arguments, **named)
        return watched(*arguments, **named)

    return called


def left_alone(rules: Any) -> None:
    """Told to `torch._dynamo.trace_rules`: our own frames are neither compiled nor warned about."""
    for name in _LEFT_ALONE:
        rules.add(f"{__name__.rpartition('.')[0]}.{name}")

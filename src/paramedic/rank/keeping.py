"""Whether a rank goes on with what its own steps have made of the parameters, or with what others send it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

from .sentinels import Sentinels, is_capturing, local, sampled

_STEPS = (4, 8)
"""Of each optimizer, after which it is looked at."""
_TENSORS = 64


class Keeping:
    def __init__(self, sentinels: Sentinels, said: dict[str, Any]) -> None:
        self.sentinels, self.said = sentinels, said
        self.open: dict[int, tuple[dict[str, Any], Sequence[Any]]] = {}
        """By the optimizer's number."""

    def before(self, number: int) -> None:
        """The next step begins: what it starts from."""
        if number in self.open:
            row, parameters = self.open.pop(number)
            self._digest(row, "used", parameters)

    def after(self, number: int, step: int, optimizer: Any) -> None:
        if step not in _STEPS or is_capturing():
            return
        held = [p for group in optimizer.param_groups for p in group["params"] if _is_plain(p)][:_TENSORS]
        if len(held) < 2 or len({p.device for p in held}) > 1:
            return
        row = {"optimizer": number, "step": step, "states": [_state(optimizer, p) for p in held]}
        self.said["kept"].append(row)
        self._digest(row, "made", held)
        self.open[number] = row, held

    def _digest(self, row: dict[str, Any], what: str, parameters: Sequence[Any]) -> None:
        torch = sys.modules["torch"]
        with torch.no_grad():
            sums = torch.stack([sampled(torch, local(p)) for p in parameters])
        name = f"kept {row['optimizer']} {row['step']} {what}"
        self.sentinels.fetch(name, sums, functools.partial(_digested, row, what))


def _is_plain(parameter: Any) -> bool:
    part = local(parameter)
    return part is not None and not hasattr(parameter, "placements") and part.numel() > 0


def _state(optimizer: Any, parameter: Any) -> int:
    """Bytes that the optimizer keeps for it, beside counters."""
    values = optimizer.state.get(parameter, {}).values()
    tensors = [one for one in values if hasattr(one, "untyped_storage") and one.dim()]
    return sum(one.numel() * one.element_size() for one in tensors)


def _digested(row: dict[str, Any], what: str, _: str, __: int, sums: Any) -> None:
    row[what] = [value & 0xFFFFFF for value in sums.tolist()]

"""Whether steps move parameters of half precision at all: what is smaller than their last digit is rounded away."""

from __future__ import annotations

import functools
import sys
from typing import Any

from .sentinels import Sentinels, is_capturing, local

_STEPS = (4, 8, 16, 32)
"""Of each optimizer."""
_TENSORS, _SAMPLE = 8, 1024


class Rounding:
    def __init__(self, sentinels: Sentinels) -> None:
        self.sentinels = sentinels
        self.kept: dict[int, list[tuple[Any, Any, Any]]] = {}
        """By the optimizer's number: some parameters, a copy of a part of each, and where there was a gradient."""

    def before(self, number: int, said: dict[str, Any], optimizer: Any) -> None:
        said["own_steps"] = said.get("own_steps", 0) + 1
        if said["own_steps"] not in _STEPS:
            return
        torch = sys.modules["torch"]
        if is_capturing():
            return
        half = [
            p
            for group in optimizer.param_groups
            for p in group["params"]
            if p.dtype in (torch.bfloat16, torch.float16) and _is_plain(p) and _is_plain(p.grad)
        ]
        largest = sorted(half, key=lambda p: -p.numel())[:_TENSORS]
        if largest and len({p.device for p in largest}) == 1:
            with torch.no_grad():
                self.kept[number] = [(p, _part(p).clone(), _part(p.grad) != 0) for p in largest]

    def after(self, number: int, said: dict[str, Any]) -> None:
        kept = [one for one in self.kept.pop(number, []) if _is_plain(one[0])]
        if kept:
            torch = sys.modules["torch"]
            with torch.no_grad():
                moved = [((_part(p) != copy) & asked).sum() for p, copy, asked in kept]
                counts = torch.stack([torch.stack(moved).sum(), torch.stack([asked.sum() for *_, asked in kept]).sum()])
            step = said["own_steps"]
            self.sentinels.fetch(f"rounding {number} {step}", counts, functools.partial(_counted, said, step))


def _is_plain(tensor: Any) -> bool:
    mine = local(tensor) if tensor is not None else None
    return mine is not None and mine.numel() > 0 and mine.is_contiguous()


def _part(tensor: Any) -> Any:
    """A view of some elements."""
    flat = local(tensor).detach().view(-1)
    return flat[:: max(1, flat.numel() // _SAMPLE)]


def _counted(said: dict[str, Any], step: int, _: str, __: int, counts: Any) -> None:
    moved, asked = (int(value) for value in counts.tolist())
    said.setdefault("moved", []).append([step, moved, asked])

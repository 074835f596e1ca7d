"""What the program recomputes in its backward pass instead of keeping it: in how many pieces."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from .agent import Agent
from .compiled import unless_compiling
from .hooks import own_place

_CALLS = 4096
"""After so many, nothing more is learned."""
_DEPTH = 3


class Recomputing:
    def __init__(self, agent: Agent, said: dict[str, Any], is_on: Callable[[], bool]) -> None:
        self.agent, self.said, self.is_on = agent, said, is_on
        self.pieces = 0
        self.calls = 0
        self.spans: list[tuple[int, int]] = []
        """Of autograd's numbers, since the last backward pass."""

    def watch(self, module: Any) -> None:
        checkpoint = module.checkpoint

        def counted(function: Any, *arguments: Any, **named: Any) -> Any:
            if not self.is_on() or not sys.modules["torch"].is_grad_enabled():
                return checkpoint(function, *arguments, **named)
            if self.calls < _CALLS:
                self.agent.guarded("conduct: recomputation", self._called, function)
            numbers = sys.modules["torch"].autograd._get_sequence_nr
            first = numbers()
            result = checkpoint(function, *arguments, **named)
            if len(self.spans) < _CALLS:
                self.spans.append((first, numbers()))
            return result

        module.checkpoint = unless_compiling(checkpoint, counted)

    def _called(self, function: Any) -> None:
        self.calls += 1
        self.pieces += 1
        if "recomputed" in self.said:
            return
        inside = {id(one): one for one in _modules(function, 0)}
        nn = sys.modules["torch"].nn
        within = [part for one in inside.values() for part in one.modules()]
        rows = [len(one) for one in within if isinstance(one, (nn.ModuleList, nn.Sequential))]
        parameters = {id(p): p.numel() for one in inside.values() for p in one.parameters()}
        self.said["recomputed"] = {
            "pieces": 0, "blocks": max([len(inside), *rows]), "elements": sum(parameters.values()),
            "place": own_place(sys._getframe(3)),
        }  # fmt: skip

    def has(self, node: Any) -> bool:
        """Whether what a node of autograd has saved is kept at all: asking for it would recompute it now."""
        return any(first <= node._sequence_nr() < last for first, last in self.spans)

    def backward(self) -> None:
        self.spans = []
        if self.pieces:
            known = self.said["recomputed"]
            known["pieces"] = max(known["pieces"], self.pieces)
            self.pieces = 0


def _modules(value: Any, depth: int) -> Iterator[Any]:
    """Modules that a function, a method, a partial function or a closure would call."""
    if isinstance(value, sys.modules["torch"].nn.Module):
        yield value
    elif depth < _DEPTH:
        inner = [getattr(value, "__self__", None), getattr(value, "func", None), *getattr(value, "args", ())]
        inner += [cell.cell_contents for cell in getattr(value, "__closure__", None) or () if _is_filled(cell)]
        inner += value if isinstance(value, (list, tuple)) else []
        for one in inner[:64]:
            if one is not None:
                yield from _modules(one, depth + 1)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False

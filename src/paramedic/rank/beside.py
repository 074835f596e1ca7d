"""Networks that the program uses beside the one it trains: teachers, targets, references. All ranks should have
the same."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Collection
from typing import Any

from .agent import Agent
from .sentinels import local

_FROM, _TO = 2, 4
"""Steps between which calls of modules are looked at."""
_NETWORKS, _VALUES = 8, 64


class Beside:
    """Listens to all modules for two steps, and then no more."""

    def __init__(self, agent: Agent, said: dict[str, Any], is_on: Callable[[], bool]) -> None:
        self.agent, self.said, self.is_on = agent, said, is_on
        self.inner: set[int] = set()
        self.networks: list[Any] = []
        self.ear: Any = None

    def stepped(self, trained: Collection[int]) -> None:
        """After each step; `trained` are the addresses of parameters that optimizers have."""
        if self.agent.steps == _FROM and self.ear is None and not _compiles():
            self.ear = sys.modules["torch"].nn.modules.module.register_module_forward_pre_hook(self.called)
        elif self.agent.steps >= _TO and self.ear is not None:
            self.ear.remove()
            self.ear = None
            networks, self.networks, self.inner = self.networks, [], set()
            self.said["beside"] = [_described(one) for one in networks if not _is_trained(one, trained)]

    def called(self, module: Any, _: Any) -> None:
        """The outermost modules are called before what is in them."""
        if self.is_on() and id(module) not in self.inner and len(self.networks) < _NETWORKS:
            self.inner.update(id(one) for one in module.modules())
            self.networks.append(module)


def _compiles() -> bool:
    """A hook on all modules would have to be compiled with them."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("frames"))


def _is_trained(module: Any, trained: Collection[int]) -> bool:
    parameters = list(module.parameters())
    return not parameters or any(one.requires_grad or id(one) in trained for one in parameters)


def _described(module: Any) -> dict[str, Any]:
    parts = [part for part in map(local, module.parameters()) if part is not None and part.device.type == "cpu"]
    said = [(tuple(part.shape), part.detach().reshape(-1)[:_VALUES].tolist()) for part in parts]
    shapes = zlib.crc32(repr([shape for shape, _ in said]).encode())
    return {"type": type(module).__name__[:80], "shapes": shapes, "print": zlib.crc32(repr(said).encode())}

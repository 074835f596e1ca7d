"""Networks that the program uses beside the one it trains: teachers, targets, references; and the buffers of those
that it trains. All ranks should have the same."""

from __future__ import annotations

import functools
import sys
import weakref
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from .agent import Agent
from .sentinels import Sentinels, is_capturing, local, sampled

_FROM, _TO = 2, 4
"""Steps between which calls of modules are looked at."""
_AGAIN = 16
"""The step after which buffers are looked at once more."""
_NETWORKS, _TENSORS = 8, 256


class Beside:
    """Listens to all modules for two steps, and then no more."""

    def __init__(self, agent: Agent, sentinels: Sentinels, said: dict[str, Any], is_on: Callable[[], bool]) -> None:
        self.agent, self.sentinels, self.said, self.is_on = agent, sentinels, said, is_on
        self.inner: set[int] = set()
        self.networks: list[Any] = []
        self.ear: Any = None
        self.buffered: list[tuple[Any, dict[str, Any]]] = []

    def stepped(self, trained: Collection[int]) -> None:
        """After each step; `trained` are the addresses of parameters that optimizers have."""
        if self.agent.steps == _FROM and self.ear is None and not _compiles():
            self.ear = sys.modules["torch"].nn.modules.module.register_module_forward_pre_hook(self.called)
        elif self.agent.steps >= _TO and self.ear is not None:
            self.ear.remove()
            self.ear = None
            networks, self.networks, self.inner = self.networks, [], set()
            self.said["beside"] = [self._described(one) for one in networks if not _is_trained(one, trained)]
            self.buffered = [(weakref.ref(one), {"type": type(one).__name__[:80], "prints": []}) for one in networks]
            self._buffers()
        elif self.agent.steps == _AGAIN and self.buffered:
            self._buffers()
            self.said["buffers"] = [row for _, row in self.buffered if "elements" in row]
            self.buffered = []

    def _buffers(self) -> None:
        for reference, row in self.buffered:
            if (module := reference()) is not None and (held := list(_own_buffers(module))):
                row["elements"] = sum(one.numel() for one in held)
                self._print(f"buffers {id(row)} {self.agent.steps}", held, row["prints"].append)

    def _described(self, module: Any) -> dict[str, Any]:
        parts = [part for part in map(local, module.parameters()) if part is not None and part.numel()]
        shapes = zlib.crc32(repr([tuple(part.shape) for part in parts]).encode())
        row: dict[str, Any] = {"type": type(module).__name__[:80], "shapes": shapes}
        self._print(f"beside {id(row)}", parts, functools.partial(row.__setitem__, "print"))
        return row

    def _print(self, what: str, tensors: Sequence[Any], use: Callable[[int], Any]) -> None:
        """One number of all of them; of those on a GPU, once it has come to it."""
        torch = sys.modules["torch"]
        if tensors and len({one.device for one in tensors}) == 1 and not is_capturing():
            with torch.no_grad():
                sums = torch.stack([sampled(torch, one) for one in tensors[:_TENSORS]])
            self.sentinels.fetch(what, sums, lambda _, __, values: use(zlib.crc32(repr(values.tolist()).encode())))

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


def _own_buffers(module: Any) -> Iterator[Any]:
    """But for those that DDP sends, and for the statistics of batches, which are each rank's own unless asked for."""
    if not getattr(module, "broadcast_buffers", False):
        batch_norm = sys.modules["torch"].nn.modules.batchnorm._BatchNorm
        for one in module.modules():
            for buffer in () if isinstance(one, batch_norm) else one.buffers(recurse=False):
                part = local(buffer)
                if part is not None and part.is_floating_point() and part.numel() > 1:
                    yield part

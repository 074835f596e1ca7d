"""Cheap looks at the numbers themselves: loss, gradient norm, and whether replicas still agree. Nothing is changed
and nothing is waited for: what a GPU computes is fetched with the next look."""

from __future__ import annotations

import math
import sys
import time
import weakref
import zlib
from collections import deque
from typing import Any

from .agent import Agent

_SHARE = 0.002  # of the time, for each sentinel
_AT_LEAST = 0.2  # seconds between two looks
_KEPT = 64
_SERIES = ("loss", "gradient_norm", "clipped_norm")
_EVERY, _EARLY = 16, (1, 2, 4, 8)  # steps at which agreement is looked for
_SAMPLE = 4096  # elements of a tensor, where some will do
_PARAMETERS_A_STEP = 1 << 15  # on average, looked at for agreement


class Sentinels:
    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.due: dict[str, float] = {}
        self.waiting: dict[str, tuple[int, Any, Any]] = {}
        self.series: dict[str, deque[list[Any]]] = {name: deque(maxlen=_KEPT) for name in _SERIES}
        self.models: list[tuple[Any, str]] = []
        """With the ranks among which each is replicated, where these are not all."""
        self.looked_at = -1
        self.uses: dict[str, Any] = {}

    def loss(self, tensors: Any) -> None:
        """The scalar from which the program starts its backward pass."""
        one = tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else tensors
        if getattr(one, "numel", None) is not None and one.numel() == 1 and self._is_due("loss"):
            self._look("loss", local(one))

    def gradients(self, optimizer: Any) -> None:
        if not self._is_due("gradient_norm"):
            return
        torch = sys.modules["torch"]
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        grads = [g for g in map(local, grads) if g is not None and g.is_floating_point() and g.numel()]
        by_device: dict[Any, list[Any]] = {}
        for grad in grads:
            by_device.setdefault((grad.device, grad.dtype), []).append(grad)
        if len(by_device) == 1:
            with torch.no_grad():
                norms = torch._foreach_norm(next(iter(by_device.values())))
                self._look("gradient_norm", torch.stack(norms).float().norm())

    def clipped(self, norm: Any) -> None:
        """What the program's own clipping found, at steps that are the same on every rank."""
        step = self.agent.steps + 1
        if step & (step - 1) == 0 and getattr(norm, "numel", None) is not None and norm.numel() == 1:
            self.take("clipped_norm", self._seen)
            if (plain := local(norm.detach())) is not None:
                self.send("clipped_norm", plain)
                self.take("clipped_norm", self._seen)

    def replicated(self, model: Any) -> None:
        self.models.append((weakref.ref(model), _among(getattr(model, "process_group", None))))

    def agreement(self) -> None:
        """A sum of all bits of the parameters, at steps that are the same on every rank, and before the next one: what
        some ranks have changed may be sent to the others in between."""
        step = self.agent.steps
        if step == self.looked_at or (step % _EVERY and step not in _EARLY):
            return
        self.looked_at = step
        for number, (reference, among) in enumerate(self.models):
            model = reference()
            parameters = [p for p in map(local, model.parameters()) if p is not None] if model is not None else []
            size = sum(p.numel() for p in parameters)
            every = _EVERY
            while every * _PARAMETERS_A_STEP < size:
                every *= 2
            if parameters and (step % every == 0 or step in _EARLY):
                torch = sys.modules["torch"]
                with torch.no_grad():
                    sums = torch.stack([bits(torch, p).sum(dtype=torch.int64) for p in parameters])
                name = " ".join(["agreement", *([str(number)] if number else []), *([among] if among else [])])
                self.fetch(name, sums, self._digested)

    # -- fetching --------------------------------------------------------------------------------------------------

    def _is_due(self, what: str) -> bool:
        self.take(what, self._seen)
        return time.monotonic() >= self.due.get(what, 0.0)

    def _look(self, what: str, tensor: Any) -> None:
        if tensor is None:
            return
        start = time.monotonic()
        self.send(what, tensor.detach())
        self.take(what, self._seen)
        now = time.monotonic()
        self.due[what] = now + max(_AT_LEAST, (now - start) / _SHARE)

    def send(self, what: str, tensor: Any) -> None:
        if tensor.device.type == "cpu":
            self.waiting[what] = self.agent.steps, tensor, None
        elif tensor.device.type == "cuda":
            torch = sys.modules["torch"]
            if torch.cuda.is_current_stream_capturing():
                return
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
            self.waiting[what] = self.agent.steps, host, ready

    def take(self, what: str, use: Any) -> None:
        step, tensor, ready = self.waiting.get(what, (0, None, None))
        if tensor is not None and (ready is None or ready.query()):
            del self.waiting[what]
            use(what, step, tensor)

    def fetch(self, what: str, tensor: Any, use: Any) -> None:
        """Handed to `use`: at once, or after one of the next steps where a GPU has yet to compute it."""
        self.send(what, tensor)
        self.take(what, use)
        if what in self.waiting:
            self.uses[what] = use

    def take_waiting(self) -> None:
        for what, use in list(self.uses.items()):
            self.take(what, use)
            if what not in self.waiting:
                del self.uses[what]

    def _seen(self, what: str, step: int, tensor: Any) -> None:
        value = float(tensor)
        self.series[what].append([step, value if math.isfinite(value) else str(value)])
        self.agent.values[what] = list(self.series[what])
        if not math.isfinite(value) and what + " seen" not in self.due:
            self.due[what + " seen"] = 0.0
            self.agent.note("non-finite", what=what, value=str(value))

    def _digested(self, what: str, step: int, tensor: Any) -> None:
        sums = tensor.tolist()
        digest = zlib.crc32(repr(sums).encode())
        self.agent.digests.append({"what": what, "step": step, "digest": f"{digest:08x}", "of": len(sums)})


def _among(group: Any) -> str:
    distributed = sys.modules.get("torch.distributed")
    ranks = distributed.get_process_group_ranks(group) if distributed and group is not None else []
    return "among " + ",".join(map(str, ranks)) if distributed and 0 < len(ranks) < distributed.get_world_size() else ""


def bits(torch: Any, tensor: Any) -> Any:
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    flat = tensor.detach()
    return flat.view(kinds[flat.element_size()]) if flat.dim() else flat.reshape(1).view(kinds[flat.element_size()])


def is_capturing() -> bool:
    """What is computed now would become a part of the program's CUDA graph."""
    cuda = sys.modules["torch"].cuda
    return bool(cuda.is_available() and cuda.is_initialized() and cuda.is_current_stream_capturing())


def sampled(torch: Any, tensor: Any) -> Any:
    """A sum over the bits of some elements, where the tensor lies."""
    flat = bits(torch, tensor).reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLE)].sum(dtype=torch.int64)


def local(tensor: Any) -> Any:
    """This rank's own part, as an ordinary tensor: an operation on a distributed one would communicate."""
    part = getattr(tensor, "_local_tensor", tensor)
    kinds = sys.modules["torch"].Tensor, sys.modules["torch"].nn.Parameter
    plain = type(part) in kinds and part.layout is sys.modules["torch"].strided and part.device.type in ("cpu", "cuda")
    return part if plain else None

"""The step as a stream of allocations: a dispatch mode that sees every storage come and go."""

from __future__ import annotations

import sys
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paramedic.memory import guesses, kernels
from paramedic.memory import torch_internals as internals
from paramedic.memory.allocator import FREED
from paramedic.memory.cards import Card
from paramedic.memory.events import Moment, Trace

_ADD = torch.ops.aten.add.Tensor
_INDEX_PUT = torch.ops.aten.index_put.default
NEAR_PEAK = 0.9
"""Lines are looked up only for moments this near to the first step's peak: it costs."""


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, card: Card, device: str, experts: int = 0, inner: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = Trace()
        self.card, self.device, self.experts = card, device, experts
        self.inner = inner
        """With what CUDA kernels allocate inside."""
        self.phase, self.step = "build", 0
        self.live_bytes = self.first_peak = self.peak = 0
        self._live: dict[int, tuple[int, int, Any]] = {}
        self._moments: dict[Moment, int] = {}
        self._serial = 0
        self._modules: dict[int, list[str]] = {}
        self._marks: dict[int, tuple[list[int], list[str]]] = {}
        self._workspaces: set[tuple[str, int]] = set()
        self._makers: dict[int, str] = {}
        self._alone = internals.exclusive_counts()

    # What is allocated

    def hold(self, tensor: torch.Tensor, kind: str) -> None:
        """Something that lives before the first step."""
        local = getattr(tensor, "_local_tensor", tensor)
        serial = self._new(local, self._moment(kind))
        if serial is not None:
            self.trace.kinds[serial] = kind

    def block(self, size: int, kind: str, operation: str, stream: int = 0) -> int:
        """Memory that belongs to no tensor: a workspace, a bucket."""
        self._serial += 1
        self._add(self._serial, size, self._moment(operation), stream)
        self.trace.kinds[self._serial] = kind
        return self._serial

    def release(self, serial: int, size: int) -> None:
        self.live_bytes -= size
        self.trace.events.append((serial, FREED, 0, 0))

    def _new(self, tensor: torch.Tensor, moment: int) -> int | None:
        storage, key = internals.storage_key(tensor)
        if key in self._live:
            return None
        size = storage.nbytes()
        self._serial += 1
        serial = self._serial
        self._live[key] = (serial, size, weakref.ref(storage, lambda _: self._gone(key)))
        if size:
            self._add(serial, size, moment, internals.Streams.current)
        return serial

    def _add(self, serial: int, size: int, moment: int, stream: int) -> None:
        self.trace.events.append((serial, size, stream, moment))
        self.live_bytes += size
        if self.live_bytes > self.peak:
            self.peak = self.live_bytes
            if self.step > 1 and self.live_bytes > NEAR_PEAK * self.first_peak:
                self.trace.lines[len(self.trace.events) - 1] = _line()

    def _gone(self, key: int) -> None:
        held = self._live.pop(key, None)
        self._makers.pop(key, None)
        if held is not None and held[1]:
            self.release(held[0], held[1])

    def resized(self, storage: Any, size: int) -> None:
        """FSDP frees a storage by making it empty, and fills it again later."""
        held = self._live.get(storage._cdata)
        if held is None or held[1] == size:
            return
        if held[1]:
            self.release(held[0], held[1])
        self._serial += 1
        self._live[storage._cdata] = (self._serial, size, held[2])
        if size:
            self._add(self._serial, size, self._moment("resize_"), internals.Streams.current)

    # Where we are

    def _moment(self, operation: str) -> int:
        moment = Moment(self.step, self.phase, self._module(), operation)
        index = self._moments.get(moment)
        if index is None:
            index = self._moments[moment] = len(self.trace.moments)
            self.trace.moments.append(moment)
        return index

    def _module(self) -> str:
        thread = threading.get_ident()
        inside = self._modules.get(thread)
        if inside:
            return inside[-1]
        if self.phase != "backward":
            return ""
        node = internals.backward_node()
        return "" if node is None else self._forward_module(node[1], thread)

    def _forward_module(self, number: int, thread: int) -> str:
        for one in (thread, threading.main_thread().ident or 0):
            numbers, names = self._marks.get(one, ([], []))
            at = bisect_right(numbers, number) - 1
            if at >= 0 and names[at]:
                return names[at]
        return ""

    def enter_module(self, name: str) -> None:
        self._modules.setdefault(threading.get_ident(), []).append(name)
        self._mark(name)

    def leave_module(self) -> None:
        inside = self._modules.get(threading.get_ident())
        if inside:
            inside.pop()
            self._mark(inside[-1] if inside else "")

    def _mark(self, name: str) -> None:
        numbers, names = self._marks.setdefault(threading.get_ident(), ([], []))
        number = internals.sequence_number()
        if numbers and numbers[-1] == number:
            names[-1] = name
        else:
            numbers.append(number)
            names.append(name)

    def enter_phase(self, phase: str) -> None:
        self.phase = phase
        self.trace.phases.append((len(self.trace.events), self.step, phase))

    def begin_step(self) -> None:
        self.step += 1
        self.trace.steps.append(len(self.trace.events))
        if self.step == 2:
            self.first_peak = self.peak
        self.peak = 0
        for numbers, names in self._marks.values():
            numbers.clear()
            names.clear()

    # What runs

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(one.__name__ in ("DTensor", "AsyncCollectiveTensor") for one in types):
            return NotImplemented
        kwargs = kwargs or {}
        if internals.Propagation.running:
            return func(*args, **kwargs)
        if self.phase == "backward" and self._in_place(func, args, sys._getframe(1)):
            out = func(*args, **kwargs)
            self._inherit(args[0], out)
            return out
        out = guesses.run(func, args, kwargs, self)
        tensors = _tensors(out)
        if tensors:
            self._record(func, args, out, tensors)
        return out

    def _in_place(self, func: Any, args: Any, caller: Any) -> bool:
        """What autograd writes over where there are data: its own zeros, and the first of gradients that meet."""
        if func not in (_ADD, _INDEX_PUT) or not internals.called_by_engine(caller):
            return False
        return func is _INDEX_PUT or self._sums_up(args)

    def _sums_up(self, args: Any) -> bool:
        """Gradients that meet are summed into the first, if nobody else holds it."""
        if len(args) != 2 or not all(isinstance(one, torch.Tensor) for one in args) or args[0].shape != args[1].shape:
            return False
        return internals.reference_counts(args[0]) == self._alone and args[0].is_contiguous()

    def _inherit(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """The sum takes over the memory of its first part."""
        _, old_key = internals.storage_key(old)
        held = self._live.get(old_key)
        storage, key = internals.storage_key(new)
        if held is None or key in self._live:
            return
        self._live[old_key] = (held[0], 0, held[2])
        self._live[key] = (held[0], held[1], weakref.ref(storage, lambda _: self._gone(key)))

    def _record(self, func: Any, args: Any, out: Any, tensors: list[torch.Tensor]) -> None:
        here = [one for one in tensors if one.device.type == self.device]
        if not here:
            return
        moment = self._moment(func._overloadpacket.__name__)
        if func in kernels.MATRIX_PRODUCTS and self.inner:
            self._workspace()
        for tensor in here:
            self._new(tensor, moment)
        inner = kernels.INNER.get(func)
        if inner is not None and self.inner:
            self._pass_through(inner(args, out, self.card), moment, func in kernels.CONVOLUTIONS)

    def _pass_through(self, sizes: list[int], moment: int, optional: bool) -> None:
        made = []
        for size in sizes:
            if size:
                self._serial += 1
                self._add(self._serial, size, moment, internals.Streams.current)
                made.append((self._serial, size))
                if optional:
                    self.trace.optional.add(self._serial)
        for serial, size in made:
            self.release(serial, size)

    def _workspace(self) -> None:
        """cuBLAS has a handle per thread, backward has its own thread, and each handle a workspace per stream."""
        thread = "backward" if self.phase == "backward" else "main"
        key = thread, internals.Streams.current
        if key not in self._workspaces:
            self._workspaces.add(key)
            self.block(self.card.cublas_workspace, "workspaces", "cublas", key[1])

    def made_by(self, tensor: torch.Tensor) -> str:
        return self._makers.get(internals.storage_key(tensor)[1], "")

    def remember_maker(self, tensor: torch.Tensor, name: str) -> None:
        self._makers[internals.storage_key(tensor)[1]] = name

    def note(self, text: str) -> None:
        if text not in self.trace.notes:
            self.trace.notes.append(text)


def _tensors(out: Any) -> list[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, tuple | list):
        return [one for part in out for one in _tensors(part)]
    return []


def _line() -> str:
    """The innermost line that is neither torch's nor ours."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not ("/torch/" in name or "/paramedic/memory/" in name or name.startswith("<")):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


@contextmanager
def watching(tracer: Tracer, model: torch.nn.Module) -> Iterator[None]:
    """Traces all that runs inside, by module."""
    names = {id(module): name for name, module in model.named_modules()}
    module_hooks = torch.nn.modules.module
    before = module_hooks.register_module_forward_pre_hook(
        lambda module, args: tracer.enter_module(names.get(id(module), type(module).__name__))
    )
    after = module_hooks.register_module_forward_hook(lambda module, args, out: tracer.leave_module(), always_call=True)
    with _resizes(tracer.resized), tracer:
        try:
            yield
        finally:
            before.remove()
            after.remove()


@contextmanager
def _resizes(seen: Callable[[Any, int], None]) -> Iterator[None]:
    original = torch.UntypedStorage.resize_

    def resize(storage: Any, size: int) -> Any:
        out = original(storage, size)
        seen(storage, size)
        return out

    torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = original  # type: ignore[method-assign]

"""Everything here leans on names that torch and transformers do not promise to keep. Nothing else in this room does.

Tried with torch 2.13; `check_version` says so when another one is found.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from paramedic.memory.cards import Card

TRIED = ((2, 9), (2, 13))


def check_version() -> str:
    """A note for the reader, or nothing."""
    major, minor = (int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if TRIED[0] <= (major, minor) <= TRIED[1]:
        return ""
    return f"torch {torch.__version__} was not tried with this; {TRIED[0][0]}.{TRIED[0][1]} to 2.{TRIED[1][1]} were"


def fake_mode() -> Any:
    """Tensors without data. `torch.tensor(..., device="cuda")` must not try to reach a card on its way."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    class NoCard(FakeTensorMode):  # type: ignore[no-untyped-call]
        avoid_device_init = True

    return NoCard()


def no_mode() -> Any:
    """Out of every dispatch mode: a model on the meta device is made without them, faster."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


class Streams:
    """Which stream the code believes to be on: blocks of one stream are not given to another."""

    current = 0
    made = 0


class Stream:
    """Stands in for torch.cuda.Stream."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Streams.made += 1
        self.stream_id = Streams.made
        self.device = torch.device("cuda", 0)
        self.device_index, self.device_type, self.cuda_stream = 0, 1, self.stream_id

    def wait_stream(self, other: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event or Event()

    def __enter__(self) -> Stream:
        self._before, Streams.current = Streams.current, self.stream_id
        return self

    def __exit__(self, *why: object) -> None:
        Streams.current = self._before


class Event:
    """Stands in for torch.cuda.Event."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def record(self, *args: Any) -> None: ...
    def wait(self, *args: Any) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        return 0.0


class _Device(contextlib.nullcontext[None]):
    def __init__(self, *args: Any) -> None:
        super().__init__()


def pretend_cuda(card: Card) -> None:
    """torch.cuda as the code under trace sees it: one card, which has everything and does nothing."""
    default = Stream()
    default.stream_id = 0
    properties = types.SimpleNamespace(
        total_memory=card.memory, major=card.capability[0], minor=card.capability[1],
        name=f"NVIDIA {card.name.upper()}", multi_processor_count=card.processors, gcnArchName="", warp_size=32,
        is_integrated=False,
        shared_memory_per_block_optin=232448,
    )  # fmt: skip

    @contextlib.contextmanager
    def stream(one: Stream | None) -> Iterator[None]:
        before = Streams.current
        Streams.current = before if one is None else one.stream_id
        try:
            yield
        finally:
            Streams.current = before

    random_state = torch.zeros(16, dtype=torch.uint8)
    stand_ins: dict[str, Any] = {
        "Stream": Stream, "Event": Event, "stream": stream, "device": _Device, "StreamContext": stream,
        "current_stream": lambda *a: default, "default_stream": lambda *a: default, "set_stream": lambda *a: None,
        "is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0,
        "set_device": lambda *a: None, "is_initialized": lambda: True, "init": lambda: None, "_lazy_init": lambda: None,
        "synchronize": lambda *a: None, "empty_cache": lambda: None, "ipc_collect": lambda: None,
        "get_device_capability": lambda *a: card.capability, "get_device_name": lambda *a: properties.name,
        "get_device_properties": lambda *a: properties, "is_bf16_supported": lambda *a, **k: card.capability >= (8, 0),
        "is_current_stream_capturing": lambda: False, "mem_get_info": lambda *a: (card.memory, card.memory),
        "memory_stats": lambda *a: {}, "memory_allocated": lambda *a: 0, "max_memory_allocated": lambda *a: 0,
        "memory_reserved": lambda *a: 0, "max_memory_reserved": lambda *a: 0,
        "reset_peak_memory_stats": lambda *a: None,
        "manual_seed": lambda *a: None, "manual_seed_all": lambda *a: None, "seed": lambda: None,
        "get_rng_state": lambda *a, **k: random_state, "set_rng_state": lambda *a, **k: None,
        "get_arch_list": lambda: [f"sm_{card.capability[0]}{card.capability[1]}"],
        "set_per_process_memory_fraction": lambda *a: None,
    }  # fmt: skip
    for name, stand_in in stand_ins.items():
        setattr(torch.cuda, name, stand_in)
    torch._C._cuda_getDevice = lambda: 0
    torch.Tensor.record_stream = lambda self, one: None  # type: ignore[method-assign, assignment]


@contextlib.contextmanager
def plain_conversion() -> Iterator[None]:
    """`model.cuda()`, `model.to(dtype)`: torch would swap tensors without data in place and fail; they are replaced."""
    done: dict[int, tuple[Any, Any]] = {}

    def converted(tensor: Any, convert: Any) -> Any:
        if id(tensor) not in done:
            with torch.no_grad():
                new = convert(tensor)
            if isinstance(tensor, torch.nn.Parameter) and new is not tensor:
                new = torch.nn.Parameter(new, requires_grad=tensor.requires_grad)
            done[id(tensor)] = (tensor, new)  # the old one is kept, or another could get its id
        return done[id(tensor)][1]

    latest: list[Any] = [None]

    def apply(module: Any, convert: Any, recurse: bool = True) -> Any:
        if latest[0] is not convert:
            latest[0] = convert
            done.clear()
        for child in module.children() if recurse else ():
            child._apply(convert)
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                held[name] = None if tensor is None else converted(tensor, convert)
        return module

    original = torch.nn.Module._apply
    torch.nn.Module._apply = apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module._apply = original  # type: ignore[method-assign]


def choose_as_on_cuda(device: str) -> None:
    """torch's optimizers run all tensors at once (`foreach`) on CUDA; for tensors without data they would not."""
    from torch._subclasses.fake_tensor import FakeTensor

    optimizer: Any = importlib.import_module("torch.optim.optimizer")
    if FakeTensor not in optimizer._foreach_supported_types:
        optimizer._foreach_supported_types.append(FakeTensor)
    if device != "cuda":
        optimizer._get_foreach_kernels_supported_devices = lambda: [device]
    _own_kernels()


@functools.cache
def _own_kernels() -> Any:
    """What has a kernel of its own on CUDA, and is put together from others where that kernel was not compiled."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name in ("silu_backward", "mish_backward"):
        library.impl(name, _never, "CUDA")
    return library


def _never(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a tensor without data reaches no kernel")


class Propagation:
    """DTensor works out shardings on tensors of the whole shape: those are nobody's memory."""

    running = 0


def separate_sharding_propagation() -> None:
    module: Any = importlib.import_module("torch.distributed.tensor._sharding_prop")
    propagator = module.ShardingPropagator
    original = propagator._propagate_tensor_meta_non_cached
    if getattr(original, "separated", False):
        return

    def separated(self: Any, *args: Any, **kwargs: Any) -> Any:
        Propagation.running += 1
        detect, module.detect_fake_mode = module.detect_fake_mode, lambda *a: None
        try:
            return original(self, *args, **kwargs)
        finally:
            module.detect_fake_mode = detect
            Propagation.running -= 1

    separated.separated = True  # type: ignore[attr-defined]
    propagator._propagate_tensor_meta_non_cached = separated


def transformers_sees_data() -> None:
    """transformers takes tensors without data for a compiler's, and then chooses other masks than a real step would."""
    names: Any = importlib.import_module("transformers.utils.import_utils")
    names.is_fake_tensor = lambda x: False


def storage_key(tensor: torch.Tensor) -> tuple[Any, int]:
    storage = tensor.untyped_storage()
    return storage, storage._cdata


def sequence_number() -> int:
    """The number that the next autograd node made on this thread gets."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def backward_node() -> tuple[str, int] | None:
    """Name and number of the autograd node that runs now on this thread."""
    node = torch._C._current_autograd_node()
    return None if node is None else (node.name(), node._sequence_nr())


def exclusive_counts() -> tuple[int, int]:
    """What a tensor without data counts as its references, and its storage's, when autograd alone holds it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[tuple[int, int]] = []

    class Look(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.add.Tensor and called_by_engine(sys._getframe(1)):
                seen.append(reference_counts(args[0]))
            return func(*args, **(kwargs or {}))

    with Look():  # type: ignore[no-untyped-call]
        x = torch.zeros(4, requires_grad=True)
        torch.cat([x.sin(), x.cos()]).sum().backward()  # type: ignore[no-untyped-call]
    return seen[0] if seen else (0, 0)


def reference_counts(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return int(tensor._use_count()), int(torch._C._storage_Use_Count(storage._cdata))  # type: ignore[attr-defined]


def called_by_engine(frame: Any) -> bool:
    """No Python code but torch's wrappers between autograd's engine and here: it adds two gradients up itself."""
    while frame is not None and frame.f_code.co_filename.endswith(("torch/_compile.py", "_dynamo/eval_frame.py")):
        frame = frame.f_back
    return frame is None or frame.f_code.co_name == "_engine_run_backward"


def fake_group(world_size: int, rank: int = 0) -> None:
    """Collectives that return at once: one rank's share of a job of any size."""
    import torch.distributed as dist

    testing = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", store=testing.FakeStore(), rank=rank, world_size=world_size)

"""One rank's step, traced: the model is put together, shared among ranks as asked, and run."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from paramedic.memory import attention, buckets, entry, measure, models, pipeline, places, sharding, zero
from paramedic.memory import torch_internals as internals
from paramedic.memory.allocator import Settings
from paramedic.memory.cards import card_of
from paramedic.memory.events import Trace
from paramedic.memory.models import Work
from paramedic.memory.request import Request
from paramedic.memory.step import make_optimizer, materialise, run_steps
from paramedic.memory.trace import Tracer, watching

ALIKE = 2
"""Passes before one optimizer step: from the second on each takes what the second took."""
MOST_KEPT = 8


@dataclass(frozen=True)
class _Step:
    trace: Trace
    sizes: list[int]
    """Elements of each parameter."""
    layers: int | None
    notes: list[str]
    forwards: list[places.Forward]


_KEPT: dict[tuple[Request, str], _Step] = {}
"""Traces that a later request of the same child may share."""


def traced(request: Request, way: str, capacities: Sequence[int]) -> dict[str, Any]:
    device = "cpu" if way == "coarse" else "cuda"
    notes = set_up(request, way, device)
    if request.pp > 1:
        found = pipeline.stages(request, lambda one: _alone(one, device, capacities), capacities)
    else:
        found = _alone(request, device, capacities)
    found["notes"] = [*notes, *found["notes"]]
    loaded = sys.modules.get("transformers")  # the same config is other code in another release, and other memory
    return found | {"way": way, "torch": torch.__version__, "transformers": getattr(loaded, "__version__", None)}


def set_up(request: Request, way: str, device: str) -> list[str]:
    card = card_of(request.gpu, request.gpu_memory)
    if way == "guard":
        internals.pretend_cuda(card)
    internals.choose_as_on_cuda(device)
    if request.model:
        internals.transformers_sees_data()
    attention.install(card, device, flash_asked=request.attention == "flash")
    note = internals.check_version()
    return [note] if note else []


def _alone(request: Request, device: str, capacities: Sequence[int]) -> dict[str, Any]:
    step = _shared(request, device)
    found = measure.measured(step.trace, Settings.parse(request.alloc_conf), capacities)
    found["notes"] = [*step.notes, *found["notes"]]
    kinds = measure.owners_of(step.trace)
    found["places"] = places.at_peak(step.trace, kinds, found.pop("at_event"), step.forwards)
    found["forwards"] = [asdict(one) for one in step.forwards]
    return found | {"parameters": sum(step.sizes), "layers": step.layers}


def _shared(request: Request, device: str) -> _Step:
    """The allocator's settings change no trace; ZeRO's stages differ by what is put over the same bare step."""
    zero_stage = request.strategy.startswith("zero")
    bare = replace(
        request, alloc_conf="", gpu_memory=None, bucket_view=False, accumulation=min(request.accumulation, ALIKE)
    )
    if zero_stage:  # the engine holds the model in half precision, and the optimizer is its own
        half = {"fp16-autocast": "fp16", "bf16-autocast": "bf16"}.get(request.dtype, request.dtype)
        bare = replace(bare, dtype=half, strategy="zero3", offload="none", optimizer="none")
    key = (bare, device)
    if key not in _KEPT:
        while len(_KEPT) >= MOST_KEPT:
            del _KEPT[next(iter(_KEPT))]
        _KEPT[key] = _trace(bare, device)
    step = _KEPT[key]
    if zero_stage:
        return replace(step, trace=zero.over(step.trace, request, step.sizes))
    if request.bucket_view and request.strategy == "ddp":
        return replace(step, trace=buckets.into_buckets(step.trace))
    return step


def _trace(request: Request, device: str) -> _Step:
    with internals.fake_mode():
        tracer, work, batch, notes, sizes = _prepared(request, device)
        if request.strategy.startswith("zero"):
            work.optimizer = None
        elif work.optimizer is None and request.entry is None:
            work.optimizer = make_optimizer(request.optimizer, work.model.parameters())
        for leaf in tree_leaves(batch):
            if isinstance(leaf, torch.Tensor):
                tracer.hold(leaf, "inputs")
        with watching(tracer, work.model):
            run_steps(tracer, work, request, batch)
    trace = replace(tracer.trace, events=list(tracer.trace.events))  # the model's own end is no part of the step
    return _Step(trace, sizes, work.layers, [*work.notes, *notes], list(_forwards(work.model)))


def _forwards(model: torch.nn.Module) -> Iterator[places.Forward]:
    for name, module in model.named_modules():
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        if code is not None:
            last = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
            kind = code.co_qualname.split(".")[0]
            yield places.Forward(name, kind, places.short(code.co_filename), code.co_firstlineno, last)


def _prepared(request: Request, device: str) -> tuple[Tracer, Work, Any, list[str], list[int]]:
    """Model, batch and what is built around them, on this rank."""
    card = card_of(request.gpu, request.gpu_memory)
    notes: list[str] = []
    if request.world_size > 1:
        with internals.no_mode():
            sharding.join_group(request)
    if request.entry:
        work, batch = entry.from_entry(request.entry, device)
        tracer = Tracer(card, device)
    else:
        with internals.no_mode():
            work = models.from_config(request)
            sizes = [one.numel() for one in work.model.parameters()]
            if request.tp > 1:
                notes += sharding.slice_for_tp(work.model, request.tp)
        tracer = Tracer(card, device, work.experts)
        materialise(work.model, device)
        with torch.device(device):
            batch = work.make_batch()
    if request.entry:
        sizes = [one.numel() for one in work.model.parameters()]
    if request.strategy == "fsdp2" and request.dp > 1:
        sharding.fsdp2(work.model, request, device)
    for tensor in (*work.model.parameters(), *work.model.buffers()):
        if tensor.device.type == device:
            tracer.hold(tensor, "parameters")
    if request.strategy == "ddp" and request.dp > 1:
        sharding.ddp_buckets(tracer, [one for one in work.model.parameters() if one.requires_grad])
    return tracer, work, batch, notes, sizes

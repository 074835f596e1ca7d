"""One rank's step, traced: the model is put together, shared among ranks as asked, and run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paramedic.memory import attention, measure, models
from paramedic.memory import torch_internals as internals
from paramedic.memory.allocator import Settings
from paramedic.memory.cards import card_of
from paramedic.memory.request import Request
from paramedic.memory.step import make_optimizer, materialise, run_steps
from paramedic.memory.trace import Tracer, watching

_set_up: list[tuple[str, str]] = []


def traced(request: Request, way: str, capacities: Sequence[int]) -> dict[str, Any]:
    card = card_of(request.gpu, request.gpu_memory)
    device = "cpu" if way == "coarse" else "cuda"
    notes = set_up(request, way, device)
    work = models.from_config(request)
    tracer = Tracer(card, device, work.experts)
    with internals.fake_mode():
        materialise(work.model, device)
        for tensor in (*work.model.parameters(), *work.model.buffers()):
            tracer.hold(tensor, "parameters")
        work.optimizer = make_optimizer(request.optimizer, work.model.parameters())
        with torch.device(device):
            batch = work.make_batch()
        for tensor in batch.values():
            tracer.hold(tensor, "inputs")
        with watching(tracer, work.model):
            run_steps(tracer, work, request, batch)
    parameters = sum(one.numel() for one in work.model.parameters())
    found = measure.measured(tracer.trace, Settings.parse(request.alloc_conf), capacities)
    found["notes"] = [*notes, *work.notes, *found["notes"]]
    return found | {"parameters": parameters, "layers": work.layers, "way": way, "torch": torch.__version__}


def set_up(request: Request, way: str, device: str) -> list[str]:
    card = card_of(request.gpu, request.gpu_memory)
    if way == "guard":
        internals.pretend_cuda(card)
    internals.choose_as_on_cuda(device)
    internals.transformers_sees_data()
    attention.install(card, device, "flash" if request.attention == "flash" else None)
    note = internals.check_version()
    return [note] if note else []

"""The training step itself: forward, backward, optimizer, gradients set to none. Traced twice: first, then steady."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch

from paramedic.errors import ParamedicError
from paramedic.memory.models import Work
from paramedic.memory.request import Request
from paramedic.memory.trace import Tracer

STEPS = 2
_AUTOCAST = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}


def materialise(model: torch.nn.Module, device: str) -> None:
    """Parameters and buffers on the card, in the order of `model.to("cuda")`; shared ones stay shared."""
    seen: dict[int, torch.Tensor] = {}

    def placed(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in seen:
            empty = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
            if isinstance(tensor, torch.nn.Parameter):
                empty = torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
            seen[id(tensor)] = empty
        return seen[id(tensor)]

    def visit(module: torch.nn.Module) -> None:
        for child in module.children():
            visit(child)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = placed(parameter)  # type: ignore[assignment]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = placed(buffer)

    visit(model)


def make_optimizer(name: str, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer | None:
    trained = [one for one in parameters if one.requires_grad]
    optim = torch.optim
    makers: dict[str, Any] = {
        "adamw": lambda: optim.AdamW(trained),
        "adamw-foreach": lambda: optim.AdamW(trained, foreach=True),
        "adamw-fused": lambda: optim.AdamW(trained, fused=True),
        "adamw-loop": lambda: optim.AdamW(trained, foreach=False),
        "adamw-8bit": lambda: EightBitAdam(trained),
        "adam": lambda: optim.Adam(trained),
        "adam-fused": lambda: optim.Adam(trained, fused=True),
        "sgd": lambda: optim.SGD(trained, lr=1e-3),
        "sgd-momentum": lambda: optim.SGD(trained, lr=1e-3, momentum=0.9),
        "adafactor": lambda: optim.Adafactor(trained),
        "adagrad": lambda: optim.Adagrad(trained),
        "rmsprop": lambda: optim.RMSprop(trained),
        "none": lambda: None,
    }
    if not trained:
        raise ParamedicError("the model has no parameter that is trained")
    made: torch.optim.Optimizer | None = makers[name]()
    return made


class EightBitAdam(torch.optim.Optimizer):
    """The memory of bitsandbytes' AdamW8bit: two bytes an element and a scale for each 256; small tensors stay fp32."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self.state[parameter] = self._fresh(parameter)

    @staticmethod
    def _fresh(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        local = getattr(parameter, "_local_tensor", parameter)
        if local.numel() < 4096:
            return {name: torch.zeros_like(local, dtype=torch.float32) for name in ("state1", "state2")}
        blocks = -(-local.numel() // 256)
        state = {name: torch.zeros_like(local, dtype=torch.uint8) for name in ("state1", "state2")}
        scales = {name: torch.zeros(blocks, device=local.device) for name in ("absmax1", "absmax2")}
        return state | scales


def run_steps(tracer: Tracer, work: Work, request: Request, batch: Any) -> None:
    """A step as people write it; a pipeline's or an accumulation's micro-batches come before one optimizer step."""
    optimizer = work.optimizer
    for _ in range(STEPS):
        tracer.begin_step()
        for _ in range(request.accumulation):
            tracer.enter_phase("forward")
            with _autocast(request, tracer.device):
                loss = work.loss(work.model, batch)
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise ParamedicError("the loss must be one number that depends on the parameters")
            tracer.enter_phase("backward")
            loss.backward()  # type: ignore[no-untyped-call]
            del loss
        tracer.enter_phase("optimizer")
        if optimizer is not None:
            optimizer.step()
        tracer.enter_phase("zero_grad")
        work.model.zero_grad(set_to_none=True)
        if optimizer is not None:
            optimizer.zero_grad(set_to_none=True)
    tracer.enter_phase("end")
    tracer.trace.steps.append(len(tracer.trace.events))


def _autocast(request: Request, device: str) -> contextlib.AbstractContextManager[Any]:
    dtype = _AUTOCAST.get(request.dtype)
    if dtype is None or request.strategy in ("fsdp2", "zero1", "zero2", "zero3"):
        return contextlib.nullcontext()
    return torch.autocast(device, dtype=dtype)

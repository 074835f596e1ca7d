"""What parameters, gradients and optimizer states alone take on a rank: arithmetic, exact, no torch.

A step takes at least so much, whatever else it does. Where that is more than the card has, nothing needs to be traced.
"""

from __future__ import annotations

from paramedic.memory.request import Request

MOMENTS = {"adamw-8bit": 2.0, "sgd": 0.0, "adafactor": 0.0, "adagrad": 1.0, "rmsprop": 1.0, "none": 0.0}
"""Numbers an element, in the type of the weights; for the 8-bit Adam bytes. All others keep two."""


def bytes_each(request: Request) -> tuple[float, float, float]:
    """Bytes a parameter on this rank: (weights, gradients, optimizer)."""
    engine = request.strategy.startswith("zero")
    weight = 2 if engine or request.dtype in ("bf16", "fp16") else 4
    share = 1 / request.dp
    sharded = request.strategy in ("zero3", "fsdp2")
    away = request.offload != "none"
    weights = weight * (share if sharded else 1.0)
    if request.offload == "parameters":
        weights = 0.0
    gradients = weight * (share if sharded or request.strategy == "zero2" else 1.0)
    optimizer = _optimizer(request, 4 if engine else weight)
    if engine:
        optimizer += 4  # its fp32 copy of the parameters
    if engine or request.strategy == "fsdp2":
        optimizer *= share
    return weights, 0.0 if away else gradients, 0.0 if away else optimizer


def _optimizer(request: Request, weight: int) -> float:
    if request.optimizer == "adamw-8bit":
        return MOMENTS["adamw-8bit"]
    return weight * MOMENTS.get(request.optimizer, 1.0 if request.optimizer == "sgd-momentum" else 2.0)


def states(request: Request, parameters: int) -> int:
    return int(parameters / (request.tp * request.pp) * sum(bytes_each(request)))

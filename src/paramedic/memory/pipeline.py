"""Stages of a pipeline, put together from two traces with few layers: what a layer costs, and what the rest does.

A stage of the 1F1B schedule holds as many micro-batches as there are stages from it to the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.memory.request import Request

_FEW = (2, 4)
_STATES = ("parameters", "gradients", "optimizer", "communication")


def stages(request: Request, trace: Callable[[Request], dict[str, Any]], capacities: Sequence[int]) -> dict[str, Any]:
    """The stage that needs the most, with all of them in `ranks`."""
    micro = request.micro_batches or 2 * request.pp
    if request.batch % micro:
        raise ParamedicError(f"--batch {request.batch}: is no multiple of --micro-batches {micro}")
    alone = replace(
        request, pp=1, world_size=request.dp * request.tp, batch=request.batch // micro,
        strategy=request.strategy if request.dp > 1 else "none",
    )  # fmt: skip
    few, more = (trace(replace(alone, layers=layers)) for layers in _FEW)
    layers = few["layers"]
    if not isinstance(layers, int) or layers < request.pp:
        raise ParamedicError(f"--pp {request.pp}: the model has {layers or 'no known number of'} layers")
    ranks = [_stage(index, request, micro=micro, few=few, more=more) for index in range(request.pp)]
    worst = max(ranks, key=lambda one: int(one["reserved"]))
    result = dict(more)
    result.update(
        allocated=worst["allocated"], reserved=worst["reserved"], ranks=ranks, layers=layers,
        first_step={"allocated": worst["allocated"], "reserved": worst["reserved"]},
        breakdown=worst.pop("breakdown"),
        parameters=_grown(few["parameters"], more["parameters"], layers),
        capacity=[{"capacity": one, "fits": worst["allocated"] <= one} for one in capacities],
    )  # fmt: skip
    for rank in ranks:
        rank.pop("breakdown", None)
    result["notes"] = [
        *result["notes"],
        f"pipeline of {request.pp} stages, 1F1B, {micro} micro-batches: put together from traces of "
        f"{_FEW[0]} and {_FEW[1]} layers, so coarser than a traced step; the picture is that of {_FEW[1]} layers",
    ]
    return result


def _grown(few: int, more: int, layers: float) -> int:
    return int(few + (more - few) / (_FEW[1] - _FEW[0]) * (layers - _FEW[0]))


def _stage(index: int, request: Request, *, micro: int, few: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Embedding on the first, head and loss on the last: each takes half of what is not in the layers."""
    layers = few["layers"]
    own = layers // request.pp + (index < layers % request.pp)
    ends = (index == 0) + (index == request.pp - 1)
    held = min(request.pp - index, micro)
    sizes: dict[str, int] = {}
    for kind in more["breakdown"]:
        base = _grown(few["breakdown"][kind], more["breakdown"][kind], 0)
        a_layer = (more["breakdown"][kind] - few["breakdown"][kind]) / (_FEW[1] - _FEW[0])
        times = held if kind == "activations" else 1
        share = ends / 2 if kind in _STATES else float(index == request.pp - 1 or kind == "temporaries")
        sizes[kind] = int(max(a_layer * own * times + base * share, 0))
    allocated = sum(sizes.values())
    return {
        "name": f"stage {index}",
        "layers": own,
        "micro_batches_held": held,
        "allocated": allocated,
        "reserved": int(allocated * more["reserved"] / max(more["allocated"], 1)),
        "breakdown": sizes,
    }

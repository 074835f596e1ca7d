"""Operations whose result depends on values, which nobody has here: what a real step would most likely give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

if TYPE_CHECKING:
    from paramedic.memory.trace import Tracer

_ATEN = torch.ops.aten
_TRUTHS = {_ATEN.all.default, _ATEN.any.default, _ATEN.all.dim, _ATEN.any.dim}


def run(func: Any, args: Any, kwargs: Any, tracer: Tracer) -> Any:
    if func is _ATEN._local_scalar_dense.default:
        return _scalar(func, args, kwargs, tracer)
    if func is _ATEN._grouped_mm.default and args[0].dtype != torch.bfloat16:
        return _grouped(*args)
    try:
        out = func(*args, **kwargs)
    except DynamicOutputShapeException:
        return _shape(func, args, kwargs, tracer)
    if func in _TRUTHS:
        tracer.remember_maker(out, func._overloadpacket.__name__)
    elif func is _ATEN.sum.default and not args[0].is_floating_point():
        tracer.remember_maker(out, f"sum of {args[0].numel()}")
    elif func is _ATEN.eq.Scalar and tracer.made_by(args[0]) == f"sum of {args[1]}":
        tracer.remember_maker(out, "all")  # as many as there are: every one is true
    return out


def _scalar(func: Any, args: Any, kwargs: Any, tracer: Tracer) -> Any:
    """`.item()`: masks are full, numbers are sane; a counter or scale is one."""
    tensor = args[0]
    try:
        return func(*args, **kwargs)
    except DataDependentOutputException:
        if tensor.dtype == torch.bool:
            return tracer.made_by(tensor) == "all"
        if tensor.dtype.is_floating_point:
            return 1.0
        tracer.note("a number that depends on data was taken as 1")
        return 1


def _shape(func: Any, args: Any, kwargs: Any, tracer: Tracer) -> Any:
    if func is _ATEN.nonzero.default:
        return _nonzero(args[0], tracer)
    if func is _ATEN.index.Tensor:
        indices: list[Any] = []
        for index in args[1]:
            masks = index is not None and index.dtype in (torch.bool, torch.uint8)
            indices += _nonzero(index, tracer).unbind(1) if masks else [index]
        return func(args[0], indices, **kwargs)
    if func is _ATEN.masked_select.default:
        return args[0].new_empty(_likely(args[1], tracer))
    if func is _ATEN.repeat_interleave.Tensor:
        tracer.note("repeat_interleave with counts from data: each taken as 1")
        return args[0].new_empty(args[0].shape[0])
    raise DynamicOutputShapeException(func)


def _nonzero(mask: torch.Tensor, tracer: Tracer) -> torch.Tensor:
    return torch.empty((_likely(mask, tracer), mask.dim()), dtype=torch.long, device=mask.device)


def _likely(mask: torch.Tensor, tracer: Tracer) -> int:
    """Tokens are spread evenly over experts; all other masks are full."""
    count, experts = mask.numel(), tracer.experts
    if experts > 1 and (mask.dim() > 1 or count > experts):
        tracer.note(f"tokens are taken to be spread evenly over {experts} experts")
        return max(count // experts, 1)
    return count


def _grouped(left: torch.Tensor, right: torch.Tensor, offsets: torch.Tensor | None = None, *rest: Any) -> torch.Tensor:
    """Other types than bf16 run group by group on CUDA, into one result; the shape function here refuses them."""
    rows, columns = left.shape[-2], right.shape[-1]
    if left.dim() == right.dim() == 2:
        return left.new_empty((offsets.shape[0] if offsets is not None else 1, rows, columns))
    if left.dim() == right.dim() == 3:
        return left.new_empty((left.shape[0], rows, columns))
    return left.new_empty((rows, columns))

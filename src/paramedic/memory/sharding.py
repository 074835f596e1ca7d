"""One rank's share of a model: FSDP2 by torch itself, on a group in name only; tensor parallelism by slices."""

from __future__ import annotations

import re

import torch
from torch import nn

from paramedic.errors import ParamedicError
from paramedic.memory import torch_internals as internals
from paramedic.memory.buckets import bucket_sizes
from paramedic.memory.request import Request
from paramedic.memory.trace import Tracer

_COLUMNS, _ROWS = ("colwise", "local_colwise"), ("rowwise", "local_rowwise")


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The repeated layers, outermost: what people wrap."""
    found: list[nn.Module] = []

    def visit(module: nn.Module) -> None:
        for child in module.children():
            layers = list(child.children()) if isinstance(child, nn.ModuleList) else []
            if len(layers) > 1 and len({type(one) for one in layers}) == 1 and any(True for _ in child.parameters()):
                found.extend(layers)
            else:
                visit(child)

    visit(model)
    return found


def join_group(request: Request) -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    internals.fake_group(request.world_size)
    internals.separate_sharding_propagation()


def fsdp2(model: nn.Module, request: Request, device: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    with internals.no_mode():
        mesh = init_device_mesh(device, (request.dp, request.tp), mesh_dim_names=("dp", "tp"))["dp"]
    low = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}.get(request.dtype)
    precision = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32) if low else MixedPrecisionPolicy()
    offload = CPUOffloadPolicy(pin_memory=False) if request.offload != "none" else OffloadPolicy()
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh, mp_policy=precision, offload_policy=offload)
    fully_shard(model, mesh=mesh, mp_policy=precision, offload_policy=offload)


def slice_for_tp(model: nn.Module, ways: int) -> list[str]:
    """Each rank's slice of every projection, by the plan that transformers ships with the model."""
    plan = getattr(model, "_tp_plan", None) or {}
    if not plan:
        raise ParamedicError(
            f"--tp {ways}: transformers has no tensor-parallel plan for {type(model).__name__}; use --entry"
        )
    rules = [(re.compile(re.escape(name).replace(r"\*", r"[0-9]+")), style) for name, style in plan.items()]
    left = set()
    for name, module in model.named_modules():
        style = next((style for pattern, style in rules if pattern.fullmatch(name)), None)
        if style is None:
            continue
        if not _slice(module, str(style), ways, name):
            left.add(str(style))
    return [f"--tp: layers of style {', '.join(sorted(left))} are left whole"] if left else []


def _slice(module: nn.Module, style: str, ways: int, name: str) -> bool:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, nn.Parameter) or weight.dim() != 2:
        return False
    if style in _COLUMNS or style.startswith("colwise"):
        _cut(module, "weight", 0, ways, name)
        if isinstance(getattr(module, "bias", None), nn.Parameter):
            _cut(module, "bias", 0, ways, name)
        if style not in _COLUMNS:  # the result is gathered: every rank holds the whole of it
            module.register_forward_hook(lambda _module, _args, out: torch.cat([out] * ways, dim=-1))
        return True
    if style in _ROWS:
        _cut(module, "weight", 1, ways, name)
        return True
    return False


def _cut(module: nn.Module, attribute: str, dimension: int, ways: int, name: str) -> None:
    whole = getattr(module, attribute)
    if whole.shape[dimension] % ways:
        raise ParamedicError(f"--tp {ways}: {name}.{attribute} with {whole.shape[dimension]} rows cannot be shared so")
    shape = list(whole.shape)
    shape[dimension] //= ways
    part = torch.empty(shape, dtype=whole.dtype, device=whole.device)
    setattr(module, attribute, nn.Parameter(part, requires_grad=whole.requires_grad))
    for features in ("out_features", "in_features"):
        if hasattr(module, features) and (features == "out_features") == (dimension == 0):
            setattr(module, features, shape[dimension])


def ddp_buckets(tracer: Tracer, parameters: list[nn.Parameter]) -> None:
    """The reducer's flat buffers: as much as the gradients, in buckets, from the last parameter to the first."""
    for size in bucket_sizes([(str(one.dtype), one.numel() * one.element_size()) for one in parameters]):
        tracer.block(size, "communication", "ddp bucket")

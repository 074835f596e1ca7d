"""Programs that shard a model or its optimizer, or put off its reduction, and do not get what they ask for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.conditions import NEVER
from paramedic.detect.every import every_distributed_program, every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import (
    Backward,
    at,
    averages,
    backwards,
    event_of,
    exchanges_weights,
    forwards,
    gradient_reductions,
    hit,
    model_parallel,
    optimizers,
    reduces_by_hand,
    steps,
    wrapped,
)
from paramedic.detect.numbers import settled
from paramedic.detect.program import Function, dotted, text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Context, Op, Value


@every_distributed_program("no_sync")
def forward_outside_no_sync(flow: Flow) -> Iterator[Hit]:
    """DDP decides in the forward pass whether the backward pass reduces: no_sync around backward alone does nothing."""
    all_of = forwards(flow)
    if any(_no_sync(context) for op in all_of for context in op.contexts):
        return
    for backward in backwards(flow):
        model = next((one.of for one in backward.op.contexts if _no_sync(one)), None)
        if model is None or model.wrap != "ddp":
            continue
        before = [op for op in all_of if _makes_loss_of(op, backward, model)]
        if before:
            yield hit(backward.op, before[-1])


def _no_sync(context: Context) -> bool:
    return context.name == "no_sync"


def _makes_loss_of(op: Op, backward: Backward, model: Value) -> bool:
    """The wrapper's forward pass in the same round, with gradients."""
    return (
        op.of is not None
        and op.of.wrap == "ddp"
        and op.of.base is model.base
        and op.index < backward.op.index
        and not op.no_grad
        and bool(op.loops)
        and op.loops[-1] is backward.loop
    )


_TRUE_SOMETIMES = re.compile(r"set_requires_gradient_sync\(\s*(?:requires_gradient_sync\s*=\s*)?True\b")


@every_program("set_requires_gradient_sync")
def never_synchronised(flow: Flow) -> Iterator[Hit]:
    """The reduction is switched off, and no condition ever switches it on."""
    calls = list(flow.calls("set_requires_gradient_sync"))
    if not calls or not backwards(flow) or not steps(flow) or gradient_reductions(flow):
        return
    given = [op.argument("requires_gradient_sync", 0) for op in calls]
    if any(op.of is None or "parent" in op.of.attrs for op in calls):
        return  # of a part alone
    if all(value is not None and value.const is False for value in given) and not flow.mentions(
        _TRUE_SOMETIMES.pattern
    ):
        yield hit(calls[0], steps(flow)[0], how=_how(given[0]))


def _how(value: Value | None) -> str:
    return "the condition is never true" if value is not None and value.equals == NEVER else "it is switched off"


_REPLICAS = re.compile(r"(?i)repl|^(?:dp|ddp|data|hsdp|outer|node|inter|hosts?)\w*$")
_PARTS = re.compile(r"(?i)^(?:tp|tensor|model|mp|pp|pipe|cp|context|sp|seq|ep|expert)")


@every_distributed_program("fully_shard", "FullyShardedDataParallel")
def replicas_left_out(flow: Flow) -> Iterator[Hit]:
    """Sharded over one dimension of a mesh whose other one holds replicas: nothing brings those together."""
    if model_parallel(flow) or reduces_by_hand(flow) or exchanges_weights(flow):
        return
    if wrapped(flow, "ddp") or flow.has("replicate", "get_group", "get_all_groups"):
        return
    calls = list(flow.calls("fully_shard", "FullyShardedDataParallel"))
    for op in calls:
        given = op.argument("mesh") or op.argument("device_mesh")
        whole, key = (given.attrs.get("sliced"), given.attrs.get("by")) if given is not None else (None, None)
        if given is None or whole is None or key is None or given.kind != "mesh" or not isinstance(key.const, str):
            continue
        others = [name for name in _dimensions(whole) if name != key.const]
        if len(others) != 1 or _PARTS.search(key.const):
            continue
        if _REPLICAS.search(others[0]) and not _used(flow, others[0]):
            yield hit(op, *([whole.made] if whole.made is not None else []), left=others[0], over=key.const)
            return


def _dimensions(mesh: Value) -> list[str]:
    """The names of a mesh's dimensions, where each has more than one rank for all that is known."""
    made = mesh.made
    names = made.argument("mesh_dim_names") if made is not None else None
    shape = made.argument("mesh_shape", 1) if made is not None else None
    if names is None or names.items is None or not all(isinstance(one.const, str) for one in names.items):
        return []
    if shape is not None and any(one.number() == 1 for one in shape.items or ()):
        return []
    return [one.const for one in names.items]


def _used(flow: Flow, name: str) -> bool:
    """The program names that dimension elsewhere than where the mesh is made."""
    quoted = rf"['\"]{re.escape(name)}['\"]"
    count = sum(len(re.findall(quoted, module.text)) for module in flow.nodes)
    return count != 1


@every_distributed_program("FullyShardedDataParallel")
def shards_of_unlike_weights(flow: Flow) -> Iterator[Hit]:
    """Weights read on the first rank alone: each other rank shards its own, and the model is put together of both."""
    if model_parallel(flow) or flow.has("broadcast", "broadcast_object_list", "_sync_module_states"):
        return
    for wrap in wrapped(flow, "fsdp"):
        told = wrap.argument("sync_module_states")
        if (told is not None and told.const is not False) or wrap.starred or "**" in wrap.keywords:
            continue
        loads = [
            op
            for op in flow.calls("load_state_dict")
            if op.of is not None and op.of.kind == "model" and op.of.base is wrap.result.base and op.index < wrap.index
        ]
        if loads and all(op.label == "first" for op in loads) and not wrap.label:
            yield hit(loads[0], wrap)


_HALF = {"torch.bfloat16": 256, "torch.float16": 2048, "torch.half": 2048}
"""The largest whole number up to which a format has all of them."""


@every_distributed_program("MixedPrecision")
def positions_in_half(flow: Flow) -> Iterator[Hit]:
    """FSDP casts a buffer that counts, to a format in which large numbers fall together."""
    for policy in flow.calls("MixedPrecision"):
        given = policy.argument("buffer_dtype", 2)
        limit = _HALF.get(given.name, 0) if given is not None else 0
        if not limit or not wrapped(flow, "fsdp"):
            continue
        for op in flow.calls("register_buffer"):
            length = _counts(flow, op.argument("tensor", 1))
            if length is not None and length > limit:
                yield hit(policy, op, limit=str(limit), format=given.name.rsplit(".", 1)[-1] if given else "")


def _counts(flow: Flow, value: Value | None, depth: int = 0) -> float | None:
    """The last number of `torch.arange(n)` as a float, not scaled."""
    made = value.made if value is not None else None
    if value is None or made is None or "op" in value.attrs or depth > 4:
        return None
    if made.last == "arange":
        dtype = made.argument("dtype")
        if depth == 0 and not (dtype is not None and "float" in dtype.name):
            return None
        return settled(flow, made.args[-1] if len(made.args) < 3 else made.args[1]) if made.args else None
    if made.last in ("float", "to", "double", "type", "unsqueeze", "view", "reshape", "contiguous", "clone"):
        return _counts(flow, made.of, depth + 1)
    return None


_FEW = 1000


@every_distributed_program("size_based_auto_wrap_policy", "partial", "FullyShardedDataParallel")
def every_layer_a_unit(flow: Flow) -> Iterator[Hit]:
    """So few parameters make a unit of FSDP that each layer is one, with messages of its own."""
    if not wrapped(flow, "fsdp") or not backwards(flow):
        return
    for op in flow.calls("partial", "size_based_auto_wrap_policy"):
        if op.last == "partial" and not (op.args and op.args[0].name.endswith("size_based_auto_wrap_policy")):
            continue
        least = op.argument("min_num_params")
        number = settled(flow, least)
        if number is not None and number <= _FEW:
            yield hit(op, wrapped(flow, "fsdp")[0], least=f"{number:g}")


@every_distributed_program("ZeroRedundancyOptimizer")
def dealt_out_and_never_averaged(flow: Flow) -> Iterator[Hit]:
    """ZeroRedundancyOptimizer sends weights from their owners; gradients it leaves to DDP, and there is none."""
    made = [op for op in optimizers(flow) if op.last == "ZeroRedundancyOptimizer"]
    if not made or averages(flow) or model_parallel(flow) or not backwards(flow) or not steps(flow):
        return
    if reduces_by_hand(flow) or flow.has("register_comm_hook", "DistributedDataParallel", "GradBucket"):
        return
    if flow.mentions(r"all_?reduce\w*\([^)\n]*grad|DistributedOptimizer|\bDDP\("):
        return
    yield hit(made[0], steps(flow)[0])


@every_distributed_program("ZeroRedundancyOptimizer")
def one_tensor_to_deal_out(flow: Flow) -> Iterator[Hit]:
    """ZeroRedundancyOptimizer deals out whole tensors, and the model has one."""
    for op in optimizers(flow):
        model = op.result.root
        node = model.node if model is not None else None
        if op.last != "ZeroRedundancyOptimizer" or model is None or not isinstance(node, ast.ClassDef):
            continue
        only = _only_parameter(node)
        if only is not None and model.module is not None:
            yield Hit((event_of(op), *at(model.module, only).quoted))


def _only_parameter(cls: ast.ClassDef) -> ast.AST | None:
    """The one tensor, made of many, that is all that a class has to learn."""
    found: list[ast.Call] = []
    init = next((one for one in cls.body if isinstance(one, Function) and one.name == "__init__"), None)
    for part in ast.walk(init) if init is not None else ():
        if isinstance(part, ast.For | ast.ListComp | ast.GeneratorExp) and "Parameter(" in text_of(part):
            return None
        if isinstance(part, ast.Call):
            name = dotted(part.func)
            last = name.rsplit(".", 1)[-1]
            if last == "Parameter":
                found.append(part)
            elif last[:1].isupper() or last in ("register_parameter", "add_module", "setattr"):
                return None
    joins = re.compile(r"cat\(|flatten|concat|parameters_to_vector|hstack")
    if len(found) == 1 and joins.search(text_of(init)):
        return found[0]
    return None

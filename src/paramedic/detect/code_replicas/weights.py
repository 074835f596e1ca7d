"""Weights that are not alike on all ranks, or do not stay so."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.every import every_distributed_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import (
    averages,
    backwards,
    exchanges_weights,
    first_backward,
    gradient_reductions,
    hit,
    model_parallel,
    reduces_by_hand,
    steps,
    uses_horovod,
    wrapped,
)
from paramedic.detect.program import text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Guard, Op, Value

_IN_PLACE = frozenset(
    [
        "copy_",
        "add_",
        "mul_",
        "sub_",
        "normal_",
        "uniform_",
        "fill_",
        "lerp_",
        "zero_",
        "data_",
        "xavier_uniform_",
        "kaiming_normal_",
        "trunc_normal_",
    ]
)


_CHANGES = (*_IN_PLACE, "load_state_dict", "reset_parameters")


_INITS = re.compile(
    r"^(?:xavier|kaiming|orthogonal|trunc_normal|normal|uniform|constant|zeros|ones|sparse|eye|dirac)\w*_$"
)
_CONSTANT = re.compile(r"^(?:constant|zeros|ones|eye|dirac)_$")


@every_distributed_program("step")
def step_on_one_rank(flow: Flow) -> Iterator[Hit]:
    if model_parallel(flow) or exchanges_weights(flow):
        return
    broadcasts = [op for op in flow.calls("broadcast") if op.loops and any(v.kind == "params" for v in op.args)]
    all_of = steps(flow)
    for op in all_of:
        guard = next((g for g in reversed(op.guards) if g.label), None)
        if guard is None or not op.loops or broadcasts or (guard.label == "some" and not guard.value.has("rank")):
            continue
        if any(other is not op and other.of is op.of and other.label not in ("", op.label) for other in all_of):
            continue
        if (
            guard.depth > 0
            and guard.label
            and not (_shares_out(flow, guard, op) or _has_its_own_group(flow, guard, op))
        ):
            yield hit(op, who=text_of(guard.node))


def _shares_out(flow: Flow, guard: Guard, op: Op) -> bool:
    """Each rank has rounds of its own, backward pass and all: their number is compared with the rank, as in
    `if i % world_size != rank: continue`."""
    if not any(guard.node is other.node for one in backwards(flow) for other in one.op.guards):
        return False
    rounds = {name.id for loop in op.loops for name in _names(getattr(loop.node, "target", None))}
    return any(name.id in rounds for name in _names(guard.node))


def _has_its_own_group(flow: Flow, guard: Guard, op: Op) -> bool:
    """These ranks alone have the optimizer, and a model that is wrapped for their group: no other rank is left out."""

    def theirs(one: Op | None) -> bool:
        return one is not None and any(text_of(g.node) == text_of(guard.node) for g in one.guards)

    groups = ("process_group", "device_mesh", "mesh")
    made = op.of.made if op.of is not None else None
    return theirs(made) and any(theirs(one) and any(key in one.keywords for key in groups) for one in wrapped(flow))


def _names(node: ast.AST | None) -> Iterator[ast.Name]:
    return (one for one in ast.walk(node) if isinstance(one, ast.Name)) if node is not None else iter(())


@every_distributed_program(*_CHANGES)
def weights_of_one_rank(flow: Flow) -> Iterator[Hit]:
    """Weights set on one rank only, once the wrapper has made them alike (or where nothing ever does)."""
    if model_parallel(flow) or (uses_horovod(flow) and flow.mentions(r"(?i)broadcast|elastic")):
        return
    wraps = {id(op.result.base): op for op in wrapped(flow, "ddp", "deepspeed", "ray", "accelerate")}
    sharded = wrapped(flow, "fsdp", "fsdp2")
    for op in flow.calls(*_CHANGES):
        changed = _changes_weights(op)
        guard = next((g for g in reversed(op.guards) if g.label), None)
        if changed is None or guard is None or sharded:
            continue
        if guard.label == "others" and not guard.value.has("rank"):
            continue
        wrap = wraps.get(id(changed.base))
        if wrap is None and (averages(flow) or not reduces_by_hand(flow)):
            continue
        if wrap is not None and op.index < wrap.index:
            continue
        if wrap is None and not any(one.index > op.index for one in flow.calls("backward", "step")):
            continue  # nobody trains with it any more
        later = [
            one
            for one in flow.calls(
                "broadcast",
                "broadcast_parameters",
                "_sync_module_states",
                "broadcast_object_list",
                "broadcast_coalesced",
            )
            if one.index > op.index
        ]
        if later or any(
            other is not op and _changes_weights(other) is not None and other.label not in ("", op.label)
            for other in flow.calls(*_CHANGES)
        ):
            continue
        yield hit(op, who=text_of(guard.node))


def _changes_weights(op: Op) -> Value | None:
    of = op.of
    if of is None:
        return None
    if op.last == "load_state_dict" and of.kind == "model":
        return of
    if op.last in _IN_PLACE and of.kind == "params" and not of.has("grad"):
        return of
    if op.last == "reset_parameters" and of.kind == "model":
        return of
    return None


@every_distributed_program()
def changed_after_wrapping(flow: Flow) -> Iterator[Hit]:
    """Layers drawn anew or replaced after the wrapper was made."""
    wraps = wrapped(flow, "ddp", "deepspeed", "fsdp", "ray", "accelerate")
    alike = bool(flow.seeds) and not any(
        value.has("rank") for op in flow.seeds for value in (*op.args, *op.keywords.values())
    )
    if flow.has("broadcast", "broadcast_parameters", "_sync_module_states") or not wraps:
        return
    for op in flow.ops:
        of = op.of
        wrap = next((one for one in wraps if one.index < op.index), None)
        if wrap is None or op.label:
            continue
        if (
            op.kind == "setattr"
            and of is not None
            and of.kind == "model"
            and op.args[0].kind == "model"
            and op.args[0].made is not None
        ):
            outer = of.attrs.get("outer")
            if (
                (outer is not None or of.wrap)
                and op.args[0].made.index > wrap.index
                and op.args[0].base is not of.base
                and op.name not in ("module", "model")
            ) and not any(later.index > op.index for later in wraps):
                yield hit(op, wrap, what=f"{op.name} is replaced")
        if alike:
            continue
        drawn: Value | None = None
        if op.kind == "call" and op.last == "reset_parameters":
            drawn = of
        elif (
            op.kind == "call"
            and _INITS.match(op.last)
            and op.args
            and op.last not in ("constant_", "zeros_", "ones_", "eye_", "dirac_")
        ):
            drawn = op.args[0] if "init" in op.name else of
        if (
            drawn is not None
            and drawn.kind in ("model", "params")
            and any(_below(drawn, one) for one in wraps if one.index < op.index)
        ):
            yield hit(op, wrap, what="weights are drawn anew")


def _below(value: Value, wrap: Op) -> bool:
    results = wrap.result.items or [wrap.result]
    return any(one.kind == "model" and one.base is value.base for one in results)


@every_distributed_program("all_reduce", "allreduce")
def unlike_starts(flow: Flow) -> Iterator[Hit]:
    """Gradients averaged by hand move models that were never alike."""
    reductions = [op for op in gradient_reductions(flow) if op.last in ("all_reduce", "allreduce")]
    if not reductions or averages(flow) or model_parallel(flow) or uses_horovod(flow):
        return
    if any(
        any(v.kind in ("params", "state", "model", "list") for v in op.args)
        for op in flow.calls("broadcast", "broadcast_object_list")
    ):
        return
    if flow.has("load_state_dict", "_sync_module_states", "broadcast_parameters") or flow.mentions(r"broadcast"):
        return
    models = [op for op in flow.ops if op.kind == "call" and op.result.kind == "model" and op.result.made is op]
    trained = [one.loss.root for one in backwards(flow) if one.loss.root is not None]
    if not trained:
        return
    born = next((op for op in models if op.result in trained), reductions[0])
    born = next(_drawn_anew(flow, trained), born)
    seeds = [
        op
        for op in flow.seeds
        if op.index < born.index and op.last in ("manual_seed", "set_seed", "seed_everything", "manual_seed_all")
    ]
    first = first_backward(flow)
    if not seeds and not any(born.index < op.index < first and "__init__" in str(op.stack) for op in flow.seeds):
        yield hit(born, reductions[0], how="no seed is set")
    elif not seeds:
        return  # the model's own constructor sets one
    elif any(value.has("rank") for value in (*seeds[-1].args, *seeds[-1].keywords.values())):
        yield hit(seeds[-1], reductions[0], how="the seed differs between ranks")


def _drawn_anew(flow: Flow, models: list[Value]) -> Iterator[Op]:
    """Before training their weights are drawn, or set, once more."""
    for op in flow.ops[: first_backward(flow)]:
        if op.kind != "call" or not (op.last == "copy_" or _INITS.match(op.last)) or _CONSTANT.match(op.last):
            continue
        drawn = op.args[0] if "init" in op.name and op.args else op.of
        if drawn is not None and drawn.has("element") and any(drawn.root is model for model in models):
            yield op


@every_distributed_program("new_group")
def group_leaves_ranks_out(flow: Flow) -> Iterator[Hit]:
    """Gradients reduced, or a model wrapped, in a group that is not all ranks, by all of them alike."""
    if model_parallel(flow):
        return
    groups: dict[int, str] = {}
    for op in flow.calls("new_group"):
        node = op.node
        given = op.argument("ranks", 0)
        if given is None:
            continue
        text = _range_text(node, given)
        if text:
            groups[id(op.result)] = text
    for op in [*gradient_reductions(flow), *wrapped(flow, "ddp")]:
        group = op.argument("group") or op.argument("process_group")
        if group is not None and id(group) in groups and not any(guard.label for guard in op.guards):
            yield hit(op, ranks=groups[id(group)])


def _range_text(node: ast.AST, given: Value) -> str:
    """`range(world - 1)`, `range(1, world)`, `[rank]`: not all ranks."""
    made = given.made
    if (
        given.items is not None
        and len(given.items) == 1
        and given.items[0].has("rank")
        and not given.items[0].has("world")
    ):
        return "[rank]"
    if given.kind == "range" and made is not None:
        stop, start = given.attrs.get("stop", Value()), given.attrs.get("start", Value())
        text = text_of(made.node)
        step = len(made.args) > 2
        number = start.number()
        minus = stop.attrs.get("op")
        less = (
            minus is not None
            and minus.name == "Sub"
            and stop.attrs["left"].has("world")
            and stop.attrs["right"].number() is not None
        )
        if not step and (less or (number is not None and number > 0 and stop.has("world"))):
            return text
    return ""


_NORMS_REST = r"isinstance\([^\n]{1,80}BatchNorm[^\n]{0,80}\n?[^\n]{0,80}\.eval\(\)"


@every_distributed_program()
def buffers_not_broadcast(flow: Flow) -> Iterator[Hit]:
    """Not where the norms are kept out of training: their statistics stay as they are."""
    if flow.mentions(_NORMS_REST):
        return
    for op in wrapped(flow, "ddp"):
        given = op.argument("broadcast_buffers")
        tags = op.result.tags
        norms = [tag for tag in tags if tag.startswith("part:BatchNorm")]
        if given is not None and given.const is False and norms and "part:SyncBatchNorm" not in tags:
            yield hit(op)

"""Programs whose ranks do not stay copies of one model, or misuse collectives without an error."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.every import every_distributed_program, every_file, every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import (
    at,
    averages,
    backwards,
    forwards,
    gradient_reductions,
    hit,
    model_parallel,
    optimizers,
    reduces_by_hand,
    steps,
    uses_horovod,
    wrapped,
)
from paramedic.detect.program import Module, text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op, Value

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


@every_distributed_program("backward")
def trained_past_wrapper(flow: Flow) -> Iterator[Hit]:
    """Forward of the bare model: the wrapper does not know that a backward comes."""
    if model_parallel(flow):
        return
    for backward in backwards(flow):
        root = backward.loss.root
        wrap = root.attrs.get("wrapped") if root is not None else None
        if root is None or wrap is None or wrap.made is None or wrap.made.last == "initialize":
            continue
        mine = [
            op
            for op in forwards(flow, root)
            if wrap.made.index < op.index < backward.op.index
            and not op.no_grad
            and op.result.has("graph")
            and op.loops == backward.op.loops
        ]
        bare = all(op.of is not None and not op.of.wrap and op.of.base.wrap == "" for op in mine)
        if mine and bare and not reduces_by_hand(flow):
            yield hit(mine[-1], wrap.made)


@every_distributed_program("init_process_group", "init_distributed", "get_context", "TorchTrainer", "get_world_rank")
def never_wrapped(flow: Flow) -> Iterator[Hit]:
    """A process group, a training loop, and nothing that brings the gradients together."""
    starts = list(flow.calls("init_process_group", "init_distributed"))
    starts += [op for op in flow.calls("get_context", "TorchTrainer", "get_world_rank") if "ray" in op.name]
    if not starts or averages(flow) or model_parallel(flow) or reduces_by_hand(flow) or uses_horovod(flow):
        return
    if flow.mentions(r"autograd\.Function\)"):
        return  # collectives of its own, between the layers
    if re.search(_WRAPPING, re.sub(r"(?m)^\s*(?:from|import) .*$", "", flow.module.text)):
        return
    for op in steps(flow):
        if op.of is None or op.of.kind != "optimizer" or not op.loops or op.of.name == "parameter" or op.label:
            continue
        trains = [one for one in backwards(flow) if one.op.loops and op.within(one.op.loops[-1])]
        if trains and trains[0].loss.has("graph"):
            yield hit(op, starts[0])
            break


_WRAPPING = (
    r"\bDDP\b|DataParallel|\bFSDP\b|fully_shard|\bwrap|deepspeed|Lightning|\bpl\.|Trainer\((?!worker|loop|train_)|PipelineStage|prepare"
    r"|Booster|register_comm_hook|autograd\.Function|\bDTensor\b|distribute_|replicate|\bhvd\b"
)


@every_program("prepare", "setup")
def model_not_prepared(flow: Flow) -> Iterator[Hit]:
    """`prepare` got the optimizer or the loader, but not the model that is trained."""
    prepared = [
        op
        for op in flow.calls("prepare", "setup")
        if op.of is not None and op.of.kind == "accelerator" and not op.starred
    ]
    if not prepared or flow.has("prepare_model", "setup_module") or model_parallel(flow):
        return
    values = [value for op in prepared for value in (*op.args, *op.keywords.values())]
    if any(value.kind not in ("model", "loader", "optimizer", "scheduler", "dataset", "criterion") for value in values):
        return
    for backward in backwards(flow):
        root = backward.loss.root
        if (
            root is not None
            and "parameter" not in root.tags
            and not any(value.base is root for value in values if value.kind == "model")
        ):
            yield hit(prepared[0], backward.op)


_RETURNS = ("DistributedDataParallel", "FullyShardedDataParallel", "DDP", "FSDP", "prepare_model", "prepare")


@every_program(*_RETURNS)
def result_dropped(flow: Flow) -> Iterator[Hit]:
    """A wrapper returns the wrapped model; the one given to it stays as it was."""
    for op in flow.calls(*_RETURNS):
        if not op.dropped or (op.of is None and "." not in op.name):
            continue
        if op.last != "prepare":
            if op.name.startswith(("torch", "ray")):
                yield hit(op, name=op.last)
        elif op.of is not None and op.of.kind == "accelerator" and any(v.kind == "model" for v in op.args):
            yield hit(op, name=op.last)


@every_program("backward")
def optimizer_of_other_weights(flow: Flow) -> Iterator[Hit]:
    """The optimizer holds the parameters of a model that is not the one trained."""
    made = [op for op in optimizers(flow) if op.result.root is not None]
    roots = {id(op.result.root): op for op in made}
    if len({id(one.loss.root) for one in backwards(flow)}) > 1:
        return
    for backward in backwards(flow):
        root, loop = backward.loss.root, backward.loop
        if root is None or loop is None or root.has("parameter") or root.kind != "model":
            continue
        stepped = [op for op in steps(flow) if op.within(loop) and op.of is not None and op.of.root is not None]
        others = [
            op
            for op in stepped
            if op.of is not None and op.of.root is not root and op.of.root is not None and _unrelated(op.of.root, root)
        ]
        if stepped and len(others) == len(stepped) and id(root) not in roots:
            first = roots.get(id(others[0].of.root)) if others[0].of is not None else None
            copied = (
                others[0].of is not None
                and others[0].of.root is not None
                and ("copied" in others[0].of.root.attrs or "copied" in root.attrs)
            )
            if first is not None and (copied or _replaced(first, root)):
                yield hit(first, backward.op)


def _unrelated(one: Value, other: Value) -> bool:
    return one.attrs.get("parent") is not other and other.attrs.get("parent") is not one and one.base is not other.base


def _replaced(optimizer: Op, root: Value) -> bool:
    """Another model was made under the same name after the optimizer."""
    made = root.made
    params = optimizer.result.attrs.get("params", Value())
    model = params.attrs.get("model")
    return (
        made is not None
        and made.index > optimizer.index
        and model is not None
        and model.name == root.name
        and made.stack == optimizer.stack
    )


@every_distributed_program("step")
def step_on_one_rank(flow: Flow) -> Iterator[Hit]:
    if model_parallel(flow):
        return
    broadcasts = [op for op in flow.calls("broadcast") if op.loops and any(v.kind == "params" for v in op.args)]
    all_of = steps(flow)
    for op in all_of:
        guard = next((g for g in reversed(op.guards) if g.label), None)
        if guard is None or not op.loops or broadcasts or (guard.label == "some" and not guard.value.has("rank")):
            continue
        if any(other is not op and other.of is op.of and other.label not in ("", op.label) for other in all_of):
            continue
        if guard.depth > 0 and guard.label:
            yield hit(op, who=text_of(guard.node))


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
    seeds = [
        op
        for op in flow.seeds
        if op.index < born.index and op.last in ("manual_seed", "set_seed", "seed_everything", "manual_seed_all")
    ]
    if not seeds:
        yield hit(born, reductions[0], how="no seed is set")
    elif any(value.has("rank") for value in (*seeds[-1].args, *seeds[-1].keywords.values())):
        yield hit(seeds[-1], reductions[0], how="the seed differs between ranks")


@every_distributed_program("new_group")
def group_leaves_ranks_out(flow: Flow) -> Iterator[Hit]:
    """Gradients reduced, or a model wrapped, in a group that is not all ranks."""
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
        if group is not None and id(group) in groups:
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


@every_distributed_program()
def buffers_not_broadcast(flow: Flow) -> Iterator[Hit]:
    for op in wrapped(flow, "ddp"):
        given = op.argument("broadcast_buffers")
        tags = op.result.tags
        norms = [tag for tag in tags if tag.startswith("part:BatchNorm")]
        if given is not None and given.const is False and norms and "part:SyncBatchNorm" not in tags:
            yield hit(op)


# -- collectives ---------------------------------------------------------------------------------------------------

_ASYNC = frozenset(
    [
        "all_reduce",
        "all_gather",
        "broadcast",
        "reduce",
        "reduce_scatter",
        "all_gather_into_tensor",
        "reduce_scatter_tensor",
        "all_to_all_single",
        "all_to_all",
        "gather",
        "scatter",
    ]
)


@every_program(*_ASYNC, "isend", "irecv")
def handle_never_waited(flow: Flow) -> Iterator[Hit]:
    for op in flow.calls(*_ASYNC):
        given = op.argument("async_op")
        if given is not None and given.const is True and (op.dropped or not (_waits(flow) or _handed_on(op))):
            yield hit(op, name=op.last)
    for op in flow.calls("isend", "irecv"):
        if op.dropped and "distributed" in op.name:
            yield hit(op, name=op.last)


def _waits(flow: Flow) -> bool:
    return flow.mentions(r"\.wait\(|get_future|wait_all|synchronize\(")


def _handed_on(op: Op) -> bool:
    """The handle is returned or kept, for somebody else to wait."""
    line = op.module.lines[op.line - 1] if op.line <= len(op.module.lines) else ""
    found = re.match(r"\s*([\w.]+)\s*=", line)
    name = found[1] if found else ""
    return (
        "return" in line
        or "." in name
        or bool(name and re.search(rf"return [^\n]*\b{name}\b|\({name}\)", op.module.text))
    )


@every_program("all_gather", "gather")
def one_tensor_for_all(flow: Flow) -> Iterator[Hit]:
    """`[x] * n` is n times the same tensor."""
    for op in flow.calls("all_gather", "gather"):
        values = [value for value in (*op.args, *op.keywords.values()) if value.name == "repeated"]
        tensors = [v for v in values if v.items and not v.items[0].known]
        if tensors and "distributed" in op.name:
            yield hit(op, name=op.last)


@every_distributed_program("all_gather", "all_gather_into_tensor")
def gathered_in_loss(flow: Flow) -> Iterator[Hit]:
    """all_gather passes no gradient back."""
    if flow.mentions(r"autograd\.Function|distributed\.nn|GatherLayer|all_gather_with_grad"):
        return
    for op in flow.calls("all_gather", "all_gather_into_tensor"):
        if "distributed" not in op.name or len(op.args) < 2 or not op.args[1].has("graph") or op.no_grad:
            continue
        out = op.args[0]
        if any(one.kind == "setitem" and one.of is out for one in flow.ops[op.index :]):
            continue
        reads = [
            one
            for one in flow.ops[op.index + 1 :]
            if one.last in ("cat", "stack", "concat")
            and (out in one.args or any(out is v.element or out in (v.items or ()) for v in one.args))
        ]
        reads = [one for one in reads if not (one.args and one.args[0].kind == "list" and one.args[0] is not out)]
        after = [one for one in backwards(flow) if one.op.index > op.index]
        if reads and after and not any("rank" in v.tags for v in reads[0].args if v is not out):
            if _reaches(flow, reads[0], after[0].loss):
                yield hit(op, after[0].op)


def _reaches(flow: Flow, read: Op, loss: Value) -> bool:
    held = {id(read.result)}
    for op in flow.ops[read.index + 1 :]:
        values = [*op.args, *op.keywords.values(), *([op.of] if op.of is not None else [])]
        if any(_holds(value, held) for value in values):
            held.add(id(op.result))
    return _holds(loss, held)


def _holds(value: Value, held: set[int], depth: int = 0) -> bool:
    if id(value) in held:
        return True
    if depth > 4:
        return False
    return any(
        _holds(one, held, depth + 1) for key, one in value.attrs.items() if key in ("left", "right", "of", "sliced")
    ) or (value.made is not None and id(value.made.result) in held)


@every_distributed_program("broadcast", "broadcast_object_list")
def other_root(flow: Flow) -> Iterator[Hit]:
    """One rank computes it, another one sends."""
    for op in flow.calls("broadcast", "broadcast_object_list"):
        source = op.argument("src", 1)
        if source is None or op.label or not op.args or "distributed" not in op.name:
            continue
        node = op.node
        name = text_of(node.args[0]) if isinstance(node, ast.Call) and node.args else ""
        roots = _computed_on(op, name)
        text = _source_text(op)
        if len(roots) == 1 and re.fullmatch(r"\d+|[\w.]+(?:\(\))? - 1", text) and next(iter(roots)) not in (text, ""):
            yield hit(op, root=next(iter(roots)), source=text)


def _source_text(op: Op) -> str:
    value = op.argument("src", 1)
    if value is not None and value.known:
        return str(value.const)
    node = op.node
    if isinstance(node, ast.Call):
        given = [k.value for k in node.keywords if k.arg == "src"] or node.args[1:2]
        return text_of(given[0]) if given else ""
    return ""


def _computed_on(op: Op, name: str) -> set[str]:
    """Which rank assigns the name under `if rank == …`, in the same function before the call."""
    found: set[str] = set()
    if not name.isidentifier():
        return found
    body = _function_body(op)
    for node in body:
        if (
            isinstance(node, ast.If)
            and node.lineno < op.line
            and isinstance(node.test, ast.Compare)
            and len(node.test.ops) == 1
        ):
            test = node.test
            if not isinstance(test.ops[0], ast.Eq) or not re.search(r"rank|proc", text_of(test.left)):
                continue
            assigned = any(_sets(part, name) for part in ast.walk(node))
            if assigned:
                found.add(text_of(test.comparators[0]))
    return found


def _sets(node: ast.AST, name: str) -> bool:
    """An assignment to it, to an item of it, or a copy into it."""
    if isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(text_of(one.value if isinstance(one, ast.Subscript) else one) == name for one in targets)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("copy_", "fill_") and text_of(node.func.value) == name
    return False


def _function_body(op: Op) -> list[ast.AST]:
    best: ast.AST = op.module.tree
    for node in op.module.statements:
        if isinstance(node, ast.FunctionDef) and node.lineno <= op.line <= (node.end_lineno or 0):
            best = node
    return list(ast.walk(best))


@every_distributed_program("reduce")
def reduced_to_one_rank(flow: Flow) -> Iterator[Hit]:
    """After `reduce` only the destination holds the sum."""
    for op in flow.calls("reduce"):
        if not op.name.startswith("torch.distributed") or not op.args or op.label:
            continue
        tensor = op.args[0]
        for later in flow.ops[op.index + 1 :]:
            if later.label or later.last in ("reduce", "destroy_process_group", "broadcast", "all_reduce"):
                if later.last in ("broadcast", "all_reduce") and tensor in later.args:
                    break
                continue
            if (
                later.of is tensor
                and later.last in ("item", "tolist", "copy_", "div_")
                and later.last != "div_"
                and later.stack == op.stack
            ):
                if not _logged_by_first(flow, later):
                    yield hit(op, later)
                break
            if later.kind == "augassign" and later.args[0] is tensor:
                yield hit(op, later)
                break


def _logged_by_first(flow: Flow, op: Op) -> bool:
    """What is made of it is used by the first rank only."""
    users = [
        one
        for one in flow.ops[op.index + 1 :]
        if any(value is op.result or value.made is op for value in (*one.args, *one.keywords.values()))
    ]
    return bool(users) and all(one.label == "first" for one in users)


@every_file("RowwiseParallel")
def sequence_norms_not_reduced(flow: Flow, module: Module) -> Iterator[Hit]:
    """A plan that splits the sequence between layers leaves the norms out."""
    for node in ast.walk(module.tree) if flow.has("parallelize_module") else ():
        if not isinstance(node, ast.Dict):
            continue
        values = [text_of(value) for value in node.values]
        splits = any(re.search(r"RowwiseParallel\(.*output_layouts=Shard\(1\)", text) for text in values)
        goes_on = any(re.search(r"input_layouts=\(?Shard\(1\)", text) for text in values)
        if splits and goes_on and not any("SequenceParallel" in text for text in values):
            yield at(module, node)


@every_program("PipelineStage")
def tied_weights_not_reduced(flow: Flow) -> Iterator[Hit]:
    """One matrix on two stages of a pipeline: sent once at the start, never brought together again."""
    if not flow.has("PipelineStage") or gradient_reductions(flow):
        return
    for op in flow.calls("broadcast"):
        tied = op.args[0] if op.args else Value()
        if tied.kind == "params" and not tied.has("element") and not op.loops and steps(flow):
            yield hit(op)


_TAKE_MESH = ("fully_shard", "parallelize_module", "FullyShardedDataParallel", "DistributedDataParallel")


@every_program(*_TAKE_MESH)
def swapped_mesh(flow: Flow) -> Iterator[Hit]:
    """The axis for tensor parallelism given to FSDP, or the other way round."""
    for op in flow.calls(*_TAKE_MESH):
        mesh = op.argument("mesh") or op.argument("device_mesh", 1 if op.last == "parallelize_module" else None)
        axis = mesh.name if mesh is not None else ""
        if not axis.startswith("["):
            continue
        tensor = bool(re.search(r"(?i)\[(?:tp|tensor\w*|model\w*|mp)\]", axis))
        data = bool(re.search(r"(?i)\[(?:dp\w*|data\w*|fsdp|shard|replicate)\]", axis))
        if (tensor and op.last != "parallelize_module") or (data and op.last == "parallelize_module"):
            yield hit(op, axis=axis.strip("[]"), name=op.last)


@every_distributed_program("all_reduce")
def unequal_means(flow: Flow) -> Iterator[Hit]:
    """The mean of the ranks' means, where ranks read files of their own."""
    for op in flow.calls("all_reduce"):
        value = op.args[0] if op.args else Value()
        if not value.has("output") or not value.has("rank") or value.has("shard", "grad") or value.has("graph"):
            continue
        if (
            _is_mean(value)
            and not flow.mentions(r"reduction=['\"]sum")
            and any(
                (one.last in ("item",) and one.of is value) or (one.kind == "augassign" and one.name == "Div")
                for one in flow.ops[op.index : op.index + 6]
            )
        ) and not any(
            op.index - 12 < one.index < op.index and one.args[0].has("rank") for one in flow.of_kind("slice")
        ):
            yield hit(op)


def _is_mean(value: Value) -> bool:
    made = value.made
    return made is not None and made.last in (
        "cross_entropy",
        "mse_loss",
        "l1_loss",
        "mean",
        "nll_loss",
        "binary_cross_entropy_with_logits",
    )


@every_program()
def optimizer_before_sharding(flow: Flow) -> Iterator[Hit]:
    """The optimizer holds parameters that sharding then replaces."""
    shards = wrapped(flow, "fsdp", "fsdp2")
    if not shards or flow.mentions(r"use_orig_params\s*=\s*True"):
        return
    for op in optimizers(flow):
        root = op.result.root
        if root is None:
            continue
        after = [one for one in shards if one.index > op.index and _shards(one, root)]
        again = [one for one in optimizers(flow) if after and one.index > after[-1].index]
        if after and not again and after[0].stack[:1] == op.stack[:1]:
            yield hit(op, after[-1], model=_given(op))


def _shards(op: Op, root: Value) -> bool:
    model = op.argument("module", 0)
    return model is not None and model.base is root.base and "parent" not in model.attrs


def _given(op: Op) -> str:
    node = op.node
    return (
        text_of(node.args[0]).split(".parameters")[0][:60] if isinstance(node, ast.Call) and node.args else "the model"
    )

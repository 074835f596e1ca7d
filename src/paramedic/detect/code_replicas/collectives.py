"""Collectives that give something else than the program takes from them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.every import every_distributed_program, every_file, every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import (
    at,
    backwards,
    function_around,
    gradient_reductions,
    hit,
    steps,
)
from paramedic.detect.program import Module, text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op, Value

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
    for node in ast.walk(function_around(op)):
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


_ALL_MEET = frozenset(
    ("all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor", "allreduce", "allgather", "barrier")
)


@every_distributed_program(*_ALL_MEET)
def reached_by_one(flow: Flow) -> Iterator[Hit]:
    """A function that calls a collective is called by the first rank alone."""
    for op in flow.calls(*_ALL_MEET):
        if op.label != "first" or not op.name.startswith(("torch.distributed.", "horovod.")) or len(op.args) > 2:
            continue
        outer = [guard for guard in op.guards if guard.label == "first" and guard.pure]
        body = function_around(op)
        inside = [guard for guard in outer if guard.node is not None and guard.node in ast.walk(body)]
        if (
            not outer
            or (inside and op.name.startswith("torch."))
            or {"group", "process_set", "process_group"} & op.keywords.keys()
        ):
            continue
        others = [one for one in flow.calls(op.last) if one is not op and one.node is op.node and one.label != "first"]
        if not others:
            yield hit(op, name=op.last)

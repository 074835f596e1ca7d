"""TensorFlow's strategies: what a replica computes, what is added up, and what is made under a scope."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.every import every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import hit
from paramedic.detect.program import Function, text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op, Value

_STRATEGIES = (
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "TPUStrategy",
    "ParameterServerStrategy",
    "CentralStorageStrategy",
)


def _is_tensorflow(flow: Flow) -> bool:
    return flow.says("tensorflow")


@every_program(*_STRATEGIES)
def replica_mean_applied(flow: Flow) -> Iterator[Hit]:
    """Gradients are summed over replicas, so each replica's loss has to be divided by the global batch."""
    if not _is_tensorflow(flow) or not flow.has("apply_gradients"):
        return
    if not _mean_only(flow):
        return
    for op in flow.calls("gradient"):
        loss = op.args[0] if op.args else Value()
        made = loss.made
        if (
            made is not None
            and (made.last in ("reduce_mean", "mean") or _keras_mean(made))
            and op.of is not None
            and not loss.has("/world", "/n")
        ) and flow.has("run", "experimental_run_v2"):
            yield hit(made, op)


def _mean_only(flow: Flow) -> bool:
    """The batch is named global, but the loss is not divided by it."""
    return not flow.mentions(
        r"compute_average_loss|reduce_sum\([^\n]*\) ?\* ?\(?1|/ ?\w*\.?num_replicas|scale_loss|all_reduce"
        r"|/ ?\w*(?:global_batch|GLOBAL_BATCH)\w*\)?\s*\n"
    )


def _keras_mean(made: Op) -> bool:
    callee = made.of
    if callee is None or callee.made is None:
        return False
    name = callee.made.last
    reduction = callee.made.keywords.get("reduction")
    return bool(re.search(r"(?:Crossentropy|MeanSquaredError|MeanAbsoluteError|Huber)$", name)) and (
        reduction is None or ("NONE" not in reduction.name.upper() and str(reduction.const).lower() not in ("none",))
    )


@every_program("MirroredStrategy", "MultiWorkerMirroredStrategy", "TPUStrategy")
def scope_never_entered(flow: Flow) -> Iterator[Hit]:
    """A strategy that nothing is made under."""
    if not _is_tensorflow(flow) or flow.mentions(
        r"\.scope\(|strategy\.run|\.run\(|RunConfig|set_strategy|train_distribute|experimental_distribute_\w+\("
    ):
        return
    for op in flow.calls("MirroredStrategy", "MultiWorkerMirroredStrategy", "TPUStrategy"):
        if flow.has("fit", "apply_gradients") and ("distribute" in op.name):
            yield hit(op, name=op.last)


@every_program()
def traced_by_number(flow: Flow) -> Iterator[Hit]:
    """A Python number that changes from call to call makes tf.function trace anew."""
    if not _is_tensorflow(flow):
        return
    for op in flow.ops:
        callee = op.of
        if (
            op.kind != "call"
            or callee is None
            or callee.kind != "function"
            or not isinstance(callee.node, Function)
            or not op.loops
        ):
            continue
        decorators = [text_of(d) for d in callee.node.decorator_list]
        if not any(re.search(r"\btf\.function\b|^function\b", d) for d in decorators) or any(
            "input_signature" in d or "reduce_retracing=True" in d for d in decorators
        ):
            continue
        node = op.node
        given = [*node.args, *(k.value for k in node.keywords)] if isinstance(node, ast.Call) else []
        values = [*op.args, *op.keywords.values()]
        for one, value in zip(given, values, strict=False):
            if _varies(one, value, op):
                yield hit(op, name=callee.name, argument=text_of(one))
                break


def _varies(node: ast.expr, value: Value, op: Op) -> bool:
    """The loop's own count, or a number made of it with plain arithmetic."""
    if (
        isinstance(node, ast.Constant | ast.Compare | ast.BoolOp)
        or value.label
        or value.kind in ("batch", "loader", "tensor", "model", "optimizer", "iter")
        or value.has("data", "output", "graph")
    ):
        return False
    if value.has("count") and (value.kind == "number" or not isinstance(node, ast.Name)):
        return not (
            isinstance(node, ast.Call) and re.search(r"constant|convert|cast|Variable", text_of(node.func))
        ) and not _through_tensor(value)
    return False


def _through_tensor(value: Value, depth: int = 0) -> bool:
    made = value.made
    if (
        made is not None
        and re.search(r"(?:constant|convert_to_tensor|cast|Variable|range|Dataset|from_tensor)", made.name)
        and made.last != "range"
    ):
        return True
    return depth < 3 and any(
        _through_tensor(one, depth + 1) for key, one in value.attrs.items() if key in ("left", "right", "of")
    )


@every_program(*_STRATEGIES)
def same_batch_for_all(flow: Flow) -> Iterator[Hit]:
    """`strategy.run` gives every replica what it is given: only a distributed dataset yields parts."""
    if not _is_tensorflow(flow) or flow.mentions(r"distribute_dataset|distribute_values|assign_to_logical|get_replica"):
        return
    for op in flow.calls("run", "experimental_run_v2"):
        of = op.of
        if of is None or of.made is None or of.made.last not in _STRATEGIES:
            continue
        over = [loop for loop in op.loops if isinstance(loop.node, ast.For) and "range" not in text_of(loop.node.iter)]
        if over and flow.has("apply_gradients"):
            yield hit(op, of.made)


@every_program("MultiWorkerMirroredStrategy")
def saved_in_one_place(flow: Flow) -> Iterator[Hit]:
    """All workers write to one path."""
    if flow.mentions(r"task_type|task_id|is_chief|_is_chief|cluster_resolver|TF_CONFIG[\"'\]]+\)?[^\n]*index"):
        return
    for strategy in _of_workers(flow)[:1]:
        for op in flow.calls("save", "save_weights"):
            if op.of is not None and op.of.kind == "model" and not op.label:
                yield hit(op, strategy)


@every_program("MultiWorkerMirroredStrategy")
def saved_by_chief_alone(flow: Flow) -> Iterator[Hit]:
    """Saving reads variables that all workers have to bring together."""
    for strategy in _of_workers(flow)[:1]:
        for op in flow.calls("save", "save_weights"):
            if _of_model(op) and op.label == "first":
                yield hit(op, strategy)


def _of_workers(flow: Flow) -> list[Op]:
    """Strategies over several hosts."""
    return [op for op in flow.calls("MultiWorkerMirroredStrategy") if "distribute" in op.name]


def _of_model(op: Op) -> bool:
    """Also of the one that Keras gives to its callbacks."""
    if op.of is None or op.of.kind == "model":
        return op.of is not None
    return isinstance(op.node, ast.Call) and text_of(op.node.func).startswith("self.model.")


@every_program("shard")
def shuffled_before_divided(flow: Flow) -> Iterator[Hit]:
    """Each worker takes every n-th row of an order of its own: rows are seen twice, or by nobody."""
    if not _is_tensorflow(flow):
        return
    for op in flow.calls("shard"):
        if any(name == "shuffle" and not _seeded(one) for name, one in _chain(op.node)) and not flow.mentions(
            r"random\.set_seed|set_random_seed|enable_op_determinism"
        ):
            yield hit(op)


def _chain(node: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """The calls that this one goes on from, by name: `a.shuffle().shard()`."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield node.func.attr, node
        node = node.func.value


def _seeded(call: ast.Call) -> bool:
    return len(call.args) > 1 or any(one.arg == "seed" for one in call.keywords)


def _size(op: Op) -> str:
    """What `batch` is given, as it is written."""
    given = op.written(0)
    return text_of(given) if given is not None else ""


_OF_ONE = re.compile(r"(?i)per_?(?:replica|worker|gpu|device)")


@every_program(*_STRATEGIES)
def batch_of_one_replica(flow: Flow) -> Iterator[Hit]:
    """A dataset that is distributed is batched by what all replicas take together: the batch is divided among them."""
    if not _is_tensorflow(flow) or flow.mentions(r"distribute_datasets_from_function|InputContext|DatasetCreator"):
        return
    for op in flow.calls("batch"):
        written = _size(op)
        given = op.args[0] if op.args else Value()
        distributed = flow.has("experimental_distribute_dataset", "fit")
        if distributed and _OF_ONE.search(written) and "*" not in written and not given.has("world", "*world"):
            yield hit(op, what=written)


@every_program("distribute_datasets_from_function")
def pipeline_not_divided(flow: Flow) -> Iterator[Hit]:
    """The function makes one pipeline for each worker, and has to take its part itself."""
    if flow.mentions(r"\.shard\(|input_pipeline_id|auto_shard_policy|subsplit|ReadConfig|even_splits"):
        return
    if flow.mentions(r"(?i)\b\w{0,20}rank\b|task_(?:id|index)|worker_(?:id|index)"):
        return  # it may take its part by its own number
    several = _of_workers(flow)
    for op in flow.calls("distribute_datasets_from_function") if several else ():
        yield hit(op, several[0])


_COMPUTES = re.compile(
    r"^tensorflow\.(?:constant|convert_to_tensor|reduce_\w+|zeros|ones|fill|cast|stack|concat|matmul|range|Variable"
    r"|random\.(?:normal|uniform|shuffle|truncated_normal)|math\.\w+|linalg\.\w+|image\.\w+|data\.(?:Dataset|TFRecord)\w*.*)$"
)


@every_program("MultiWorkerMirroredStrategy")
def computed_before_strategy(flow: Flow) -> Iterator[Hit]:
    """Collectives are set up when TensorFlow's runtime starts: the strategy has to come before the first operation."""
    made = _of_workers(flow)
    if len(made) != 1 or len(list(flow.calls(*_STRATEGIES))) > 1:
        return
    before = [op for op in flow.ops[: made[0].index] if op.kind == "call" and op.stack[:1] in ((), made[0].stack[:1])]
    computed = [op for op in before if _COMPUTES.match(op.name)]
    if computed:
        yield hit(made[0], computed[0], what=computed[0].last)


@every_program("get_scaled_loss")
def scaled_and_never_unscaled(flow: Flow) -> Iterator[Hit]:
    """Gradients of the scaled loss are applied as they are."""
    scaled = list(flow.calls("get_scaled_loss"))
    if not flow.mentions(r"get_unscaled_gradients") and flow.has("apply_gradients"):
        yield hit(*list(flow.calls("apply_gradients"))[:1], scaled[0])


@every_program("ClusterCoordinator")
def never_joined(flow: Flow) -> Iterator[Hit]:
    """`schedule` only puts a step into a queue; nobody waits until it is done."""
    if not _of_coordinator(flow, "join", "done", "fetch"):
        yield from (hit(op) for op in _of_coordinator(flow, "schedule"))


def _of_coordinator(flow: Flow, *names: str) -> list[Op]:
    made = [(op, op.of.made) for op in flow.calls(*names) if op.of is not None]
    return [op for op, by in made if by is not None and by.last == "ClusterCoordinator"]


@every_program("distribute_datasets_from_function")
def batch_of_all_replicas(flow: Flow) -> Iterator[Hit]:
    """What the function yields is one replica's batch, and is not divided."""
    if flow.mentions(r"get_per_replica_batch_size|// ?\w*\.?num_replicas_in_sync|ParameterServerStrategy"):
        return
    made = list(flow.calls("distribute_datasets_from_function"))
    for op in flow.calls("batch"):
        written = _size(op)
        if re.search(r"(?i)global_?batch|batch_?size_?global|total_batch", written) and "/" not in written:
            yield hit(op, made[0], what=written)


@every_program(*_STRATEGIES)
def made_outside_scope(flow: Flow) -> Iterator[Hit]:
    """The model's variables are made before the scope is entered in which it is compiled."""
    if not _is_tensorflow(flow):
        return
    for op in flow.calls("compile"):
        made = op.of.made if op.of is not None and op.of.kind == "model" else None
        if made is not None and op.inside("scope") and not made.inside("scope") and "keras" in made.name:
            yield hit(op, made)

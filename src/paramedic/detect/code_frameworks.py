"""The same mistakes in TensorFlow, Horovod, accelerate and transformers, and in how ranks are numbered."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.every import every_distributed_program, every_file, every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import (
    at,
    backwards,
    hit,
    methods_of,
    model_parallel,
    of_accelerator,
    own_loaders,
    schedules,
    steps,
    uses_horovod,
)
from paramedic.detect.program import Function, Module, text_of
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
    if value.has("count"):
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


@every_program("init")
def horovod_optimizer_missing(flow: Flow) -> Iterator[Hit]:
    if not uses_horovod(flow) or flow.mentions(
        r"DistributedOptimizer|DistributedGradientTape|hvd\.allreduce|grouped_allreduce|allreduce_async|run_elastic|DistributedTrainer|distributed_optimizer"
    ):
        return
    trained = [op for op in steps(flow) if op.loops] or list(flow.calls("apply_gradients", "fit"))
    if trained:
        yield hit(trained[0])


@every_program("init")
def horovod_start_unlike(flow: Flow) -> Iterator[Hit]:
    if not uses_horovod(flow) or flow.mentions(r"(?i)broadcast|load_state_dict|load_weights|elastic|State\("):
        return
    wraps = list(flow.calls("DistributedOptimizer", "DistributedGradientTape"))
    alike = bool(flow.seeds) and not any(v.has("rank") for op in flow.seeds for v in op.args)
    if wraps and not alike:
        yield hit(wraps[0])


@every_program("prepare", "setup")
def loader_not_prepared(flow: Flow) -> Iterator[Hit]:
    """The loop goes over a loader that `prepare` never saw."""
    prepared = [op for op in of_accelerator(flow, "prepare", "setup") if op.args and not op.starred]
    if (
        not prepared
        or model_parallel(flow)
        or flow.has("prepare_data_loader", "setup_dataloaders", "DistributedSampler", "split_between_processes")
    ):
        return
    for one in backwards(flow):
        for over, made in own_loaders(one):
            if not over.has("prepared", "shard", "rank", "parameter"):
                yield hit(made, prepared[0])


@every_program("Accelerator")
def schedule_counts_processes_twice(flow: Flow) -> Iterator[Hit]:
    """A prepared schedule steps once for each process, and its length was counted in batches of one process."""
    if flow.mentions(r"split_batches=True|step_scheduler_with_optimizer=False"):
        return
    for op in schedules(flow):
        node = op.node
        tags = frozenset(tag for value in (*op.args, *op.keywords.values()) for tag in value.tags)
        tags |= _in_lambda(op)
        prepared = [one for one in flow.calls("prepare") if one.index > op.index and op.result in one.args]
        if "len:prepared" in tags and "world" not in tags and prepared and isinstance(node, ast.Call):
            yield hit(op, prepared[0])


def _in_lambda(op: Op) -> frozenset[str]:
    """What the names in a lambda given to the schedule depend on."""
    tags: frozenset[str] = frozenset()
    for value in (*op.args, *op.keywords.values()):
        if value.kind in ("lambda", "function") and value.node is not None:
            for part in ast.walk(value.node):
                if isinstance(part, ast.Name) and part.id in value.attrs:
                    tags |= value.attrs[part.id].tags
    return tags


@every_distributed_program("init_process_group")
def alone_in_its_world(flow: Flow) -> Iterator[Hit]:
    """Every process joins a group of one."""
    for op in flow.calls("init_process_group"):
        size, rank = op.argument("world_size", 3), op.argument("rank", 4)
        if size is not None and size.number() == 1 and rank is not None and rank.number() == 0 and not op.guards:
            yield hit(op)
    for op in flow.of_kind("setitem"):
        if op.target.startswith("os.environ") and not op.guards and len(op.args) == 2:
            if op.args[0].const == "WORLD_SIZE" and str(op.args[1].const) == "1":
                yield hit(op)


_SPLITS = re.compile(
    r"\[[^\[\]\n]*(?:rank|RANK|process_index)\b[^\[\]\n]*:: ?\S"
    r"|\b(?:islice|range)\([^\n]*(?:rank|process_index)\b[^\n]*,"
    r"|% ?[\w.]+\)? ?[!=]= ?[\w.]*(?:rank|process_index)\b"
)
"""One of every so many, by the rank."""


@every_program("Trainer")
def stream_split_for_trainer(flow: Flow) -> Iterator[Hit]:
    """The Trainer divides a stream between the ranks, and the stream has left out the others' part before."""
    for op in flow.ops:
        dataset = op.keywords.get("train_dataset") if op.kind == "call" and op.last.endswith("Trainer") else None
        if dataset is not None and "IterableDataset" in dataset.bases and _splits_itself(flow, dataset):
            yield hit(op, name=dataset.name)


@every_program("prepare")
def stream_split_twice(flow: Flow) -> Iterator[Hit]:
    """The main process reads a stream for all, so what the stream leaves to other ranks is never read."""
    if flow.mentions(r"dispatch_batches[\"']?\s*[=:]\s*(?!True|None)|device_placement\s*=\s*(?:False|\[)"):
        return
    for op in of_accelerator(flow, "prepare"):
        for loader in (*op.args, *op.keywords.values()):
            dataset = loader.attrs.get("dataset", Value())
            made = loader.made
            if loader.kind == "loader" and "IterableDataset" in dataset.bases and made is not None:
                if _splits_itself(flow, dataset) or _SPLITS.search(text_of(made.node)):
                    yield hit(made, op, name=dataset.name)


def _splits_itself(flow: Flow, dataset: Value) -> bool:
    node = dataset.node
    if not isinstance(node, ast.ClassDef) or dataset.module is None:
        return False
    if _SPLITS.search(text_of(node)):
        return True
    return any(
        op.module is dataset.module
        and node.lineno <= op.line <= (node.end_lineno or 0)
        and op.args[0].kind == "slice"
        and len(op.args[0].items or ()) > 1
        and op.args[0].has("rank")
        for op in flow.of_kind("slice")
    )


# -- transformers ---------------------------------------------------------------------------------------------------


_RECOMPUTES_OTHERWISE = (
    "gradient_checkpointing_enable", "_set_gradient_checkpointing", "HfArgumentParser", "TrlParser",
    "checkpoint_wrapper", "apply_activation_checkpointing", "from_config", "prepare_model_for_kbit_training",
)  # fmt: skip


@every_program()
def recomputation_asked_too_late(flow: Flow) -> Iterator[Hit]:
    """transformers reads `config.gradient_checkpointing` once, when the model is made."""
    asked = [
        op
        for op in flow.of_kind("setattr")
        if op.name == "gradient_checkpointing" and op.args[0].const is True and ".config." in op.target
    ]
    if not asked or not flow.says("transformers") or flow.has(*_RECOMPUTES_OTHERWISE):
        return
    if flow.mentions(r"config\.gradient_checkpointing\b(?!\s*=[^=])|attr\([^)\n]*gradient_checkpointing"):
        return
    settings = [op.keywords["gradient_checkpointing"] for op in flow.ops if "gradient_checkpointing" in op.keywords]
    others = [op for op in flow.of_kind("setattr") if op.name == "gradient_checkpointing" and op not in asked]
    if others or any(value.const is not False for value in settings):
        return
    for op in asked:
        holder = re.escape(op.target.removesuffix(".config.gradient_checkpointing"))
        if holder != "self" and not flow.mentions(rf"\((?:config=)?{holder}\.config[,)]"):
            yield hit(op)


@every_program("train")
def resumed_from_weights_alone(flow: Flow) -> Iterator[Hit]:
    """`save_only_model` leaves out the optimizer, the schedule and the random numbers."""
    settings = [op for op in flow.ops if op.kind == "call" and {"output_dir", "save_only_model"} & op.keywords.keys()]
    alone = [op for op in settings if _is_true(op.keywords.get("save_only_model"))]
    if not alone or len(alone) < len(settings):
        return
    for op in flow.calls("train"):
        resumed = op.keywords.get("resume_from_checkpoint")
        if resumed is not None and (not resumed.known or resumed.const):
            yield hit(alone[0], op)


@every_program("train")
def resume_set_and_not_passed(flow: Flow) -> Iterator[Hit]:
    """The Trainer never reads `TrainingArguments.resume_from_checkpoint`: scripts hand it to `train` themselves."""
    settings = [
        op for op in flow.ops if op.kind == "call" and {"output_dir", "resume_from_checkpoint"} <= op.keywords.keys()
    ]
    trains = [op for op in flow.calls("train") if op.of is not None and op.of.kind != "model"]
    asked = [op for op in settings if op.last.endswith(("Arguments", "Config"))]
    bare = [op for op in trains if not op.args and not op.keywords and not op.starred]
    value = asked[0].keywords["resume_from_checkpoint"] if asked else None
    never = value is not None and value.known and not value.const
    if asked and bare and not never and len(bare) == len(trains) and flow.says("transformers", "trl"):
        yield hit(asked[0], bare[0])


def _is_true(value: Value | None) -> bool:
    return value is not None and value.const is True


_TAKES_LOSS_ARGUMENTS = (
    r"\b(?:AutoModelFor\w+|[A-Z]\w+For(?:CausalLM|SequenceClassification|TokenClassification|MaskedLM"
    r"|ConditionalGeneration|QuestionAnswering))\b"
)
"""Models of transformers whose `forward` takes more than it names, so that the Trainer leaves the loss as it is."""


@every_file("compute_loss")
def own_loss_not_divided(flow: Flow, module: Module) -> Iterator[Hit]:
    """A loss of one's own that is a mean over the batch: where the model could have divided by all tokens, the Trainer
    takes it for divided, and adds up as many means as steps are accumulated."""
    told = [op.keywords.get("gradient_accumulation_steps") for op in flow.ops if op.kind == "call"]
    if (
        not any(count is not None and (count.const not in (1, None) or not count.known) for count in told)
        or not flow.mentions(_TAKES_LOSS_ARGUMENTS)
        or flow.mentions(r"model_accepts_loss_kwargs|loss_is_scaled_for_ga|compute_loss_func")
    ):
        return
    for _, method in methods_of(flow, module, "Trainer", "compute_loss"):
        body = "\n".join(map(text_of, method.body))
        divides = re.search(r"super\(\)|num_items_in_batch|kwargs|accumulation", body)
        if not divides and re.search(r"mean\(|loss|cross_entropy", body):
            yield at(module, method)


@every_file("num_items_in_batch")
def divided_by_tokens_of_all_ranks(flow: Flow, module: Module) -> Iterator[Hit]:
    """num_items_in_batch counts the labels of all ranks, and the gradients are averaged over the ranks once more."""
    if flow.mentions(r"average_tokens_across_devices\s*=\s*False") or not flow.says("transformers", "trl"):
        return
    for cls, method in methods_of(flow, module, "Trainer", "compute_loss"):
        if not re.search(r"num_processes|world_size|n_gpu|all_reduce|gather|num_replicas|\breduce\(", text_of(cls)):
            yield from (at(module, node) for node in ast.walk(method) if _divides_by_items(node))


def _divides_by_items(node: ast.AST) -> bool:
    divisor: ast.expr | None = None
    if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
        divisor = node.right if isinstance(node, ast.BinOp) else node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("div", "div_"):
        divisor = node.args[0] if node.args else None
    return bool(re.match(r"(?:max\()?num_items_in_batch\b", text_of(divisor)))

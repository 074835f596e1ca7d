"""The same mistakes in accelerate and transformers, and in how ranks are numbered."""

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
)
from paramedic.detect.program import Module, text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op, Value


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

"""Lightning: what it does for each process by itself, and what a module must leave to it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.every import every_file
from paramedic.detect.flow import Flow
from paramedic.detect.loops import at, methods_of
from paramedic.detect.program import Function, Module, dotted, text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op, Value

_SEVERAL = re.compile(r"ddp|fsdp|deepspeed|fully|model_parallel", re.I)
_MEETS = frozenset(
    (
        "all_gather",
        "all_reduce",
        "broadcast",
        "reduce",
        "barrier",
        "gather",
        "all_gather_object",
        "broadcast_object_list",
    )
)
_BY_STEP = re.compile(
    r"OneCycleLR|CyclicLR|get_\w+_schedule_with_warmup|estimated_stepping_batches|total_steps|num_training_steps"
)
_OF_ALL = re.compile(r"(?:self|dist|torch\.distributed|\w*trainer|\w*strategy|\w*fabric)\b")
_TOGETHER = re.compile(r"sync_dist\s*=\s*True|all_gather|all_reduce|\.compute\(\)|torchmetrics|\breduce\(")


def _is_spread(flow: Flow) -> bool:
    """A Trainer of Lightning with several processes, or with as many as somebody tells it."""
    return flow.says("lightning", "pytorch_lightning") and any(map(_several, flow.calls("Trainer")))


def _several(op: Op) -> bool:
    strategy = op.keywords.get("strategy")
    if strategy is not None and isinstance(strategy.const, str) and _SEVERAL.search(strategy.const):
        return True
    return any(_many(op.keywords.get(name)) for name in ("devices", "num_nodes", "gpus"))


def _many(value: Value | None) -> bool:
    if value is None or not value.known:
        return value is not None
    return value.const in (-1, "-1") or (isinstance(value.const, int) and value.const > 1)


def _methods(flow: Flow, module: Module, *names: str) -> Iterator[tuple[ast.ClassDef, Function]]:
    if _is_spread(flow):
        yield from methods_of(flow, module, "LightningModule", *names)


def _calls(node: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Each with its dotted name."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            yield call, dotted(call.func)


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((key.value for key in call.keywords if key.arg == name), None)


@every_file("manual_backward", "automatic_optimization")
def plain_backward(flow: Flow, module: Module) -> Iterator[Hit]:
    """With optimization by hand Lightning keeps DDP from averaging, but for what goes through `manual_backward`."""
    for cls, method in _methods(flow, module, "training_step"):
        if not re.search(r"automatic_optimization\s*=\s*False", text_of(cls)):
            continue
        for call, _ in _calls(method):
            plain = isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
            if plain and not re.search(r"fabric|strategy|scaler", text_of(call)):
                yield at(module, call)


@every_file("configure_optimizers")
def schedule_by_epoch(flow: Flow, module: Module) -> Iterator[Hit]:
    """A schedule that counts steps, and that Lightning therefore steps once an epoch."""
    for cls, method in _methods(flow, module, "configure_optimizers"):
        if "interval" in text_of(method) or re.search(r"lr_scheduler_step|\.step\(\)", text_of(cls)):
            continue
        counted = [node for node in ast.walk(method) if isinstance(node, ast.Assign) and _counts_steps(node.value)]
        returned = [text_of(node.value) for node in ast.walk(method) if isinstance(node, ast.Return) and node.value]
        for node in counted[:1]:
            if any(re.search(rf"\b{re.escape(text_of(node.targets[0]))}\b", one) for one in returned):
                yield at(module, node)


def _counts_steps(made: ast.expr) -> bool:
    schedule = isinstance(made, ast.Call) and re.search(r"(?i)LR$|schedule", dotted(made.func))
    return bool(schedule and _BY_STEP.search(text_of(made)))


@every_file("use_distributed_sampler", "replace_sampler_ddp")
def rows_not_divided(flow: Flow, module: Module) -> Iterator[Hit]:
    """Lightning is told to leave samplers alone, and nobody divides the rows."""
    if not _is_spread(flow) or flow.mentions(
        r"DistributedSampler|\brank\b|process_index|shard|world_size|num_replicas"
    ):
        return
    for op in flow.calls("Trainer"):
        for name in ("use_distributed_sampler", "replace_sampler_ddp"):
            given = op.keywords.get(name)
            if op.module is module and given is not None and given.const is False:
                yield at(module, op.node)


@every_file("rank_zero_only")
def meets_nobody(flow: Flow, module: Module) -> Iterator[Hit]:
    """A collective in a function that the first process alone runs."""
    if not _is_spread(flow):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, Function) and any(text_of(one).endswith("rank_zero_only") for one in node.decorator_list):
            for call, name in _calls(node):
                what = name.rsplit(".", 1)[-1]
                if what in _MEETS and _OF_ALL.match(name):
                    yield at(module, call, what=what)


@every_file("monitor")
def watched_value_of_one_rank(flow: Flow, module: Module) -> Iterator[Hit]:
    """What decides on the best checkpoint, or on stopping, is logged by each process for its own rows."""
    watched = {
        value.const
        for op in flow.calls("ModelCheckpoint", "EarlyStopping", "ReduceLROnPlateau")
        if (value := op.keywords.get("monitor")) is not None
    }
    judged = ("validation_step", "on_validation_epoch_end", "validation_epoch_end")
    for cls, method in _methods(flow, module, *judged):
        for call, called in _calls(method):
            name = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
            if called == "self.log" and name in watched and not _is_common(cls, method, call):
                yield at(module, call, what=str(name))


def _is_common(cls: ast.ClassDef, method: Function, call: ast.Call) -> bool:
    """Averaged over the ranks, gathered before, or a metric that does so itself."""
    sync = _keyword(call, "sync_dist")
    if sync is not None and not (isinstance(sync, ast.Constant) and sync.value is False):
        return True
    value = call.args[1] if len(call.args) > 1 else _keyword(call, "value")
    of_itself = isinstance(value, ast.Attribute) and text_of(value).startswith("self.")
    own = [text_of(one) for one, _ in _calls(method)]
    return of_itself or bool(_TOGETHER.search(" ".join(own))) or "Metric" in text_of(cls)


_SAVES = re.compile(r"(?:^|\.)(?:trainer\.save_checkpoint|all_gather|strategy\.barrier|strategy\.reduce)$")


@every_file("is_global_zero", "global_rank == 0", "local_rank == 0")
def saved_by_one(flow: Flow, module: Module) -> Iterator[Hit]:
    """Lightning gathers states from all processes, and lets the first one write by itself."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.If) or not re.fullmatch(_ZERO, text_of(node.test)):
            continue
        for call in (part for one in node.body for part in ast.walk(one) if isinstance(part, ast.Call)):
            if _SAVES.search(text_of(call.func)):
                yield at(module, call, name=text_of(call.func).rsplit(".", 1)[-1])


_ZERO = r"(?:[\w.]+\.)?is_global_zero|(?:[\w.]+\.)?(?:global|local)_rank == 0"

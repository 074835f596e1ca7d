"""Wrapped, and not trained through the wrapper; or never wrapped at all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.conditions import is_rank
from paramedic.detect.every import every_distributed_program, every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import (
    averages,
    backwards,
    exchanges_weights,
    forwards,
    hit,
    model_parallel,
    optimizers,
    reduces_by_hand,
    steps,
    uses_horovod,
    wrapped,
)
from paramedic.detect.program import text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op, Value


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
            and not any(_of_another(value, root) for value in op.args)
        ]
        bare = all(op.of is not None and not op.of.wrap and op.of.base.wrap == "" for op in mine)
        if mine and bare and not reduces_by_hand(flow):
            yield hit(mine[-1], wrap.made)


def _of_another(value: Value, root: Value) -> bool:
    """What another wrapped model made: its gradients go through this one, as a generator's through its critic."""
    maker = value.root if value.has("graph") else None
    return maker is not None and maker is not root and "wrapped" in maker.attrs


@every_distributed_program("init_process_group", "init_distributed", "get_context", "TorchTrainer", "get_world_rank")
def never_wrapped(flow: Flow) -> Iterator[Hit]:
    """A process group, a training loop, and nothing that brings the gradients together."""
    starts = list(flow.calls("init_process_group", "init_distributed"))
    starts += [op for op in flow.calls("get_context", "TorchTrainer", "get_world_rank") if "ray" in op.name]
    if not starts or averages(flow) or model_parallel(flow) or reduces_by_hand(flow) or uses_horovod(flow):
        return
    if exchanges_weights(flow) or flow.mentions(_APART) or any(map(_tells_whose, flow.calls(*_ROWS))):
        return  # in their own way, or meant to stay apart
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


def _tells_whose(op: Op) -> bool:
    """What each rank has found is gathered with its number: results of models of their own, side by side."""
    given = op.argument("obj", 1 if op.last == "all_gather_object" else 0)
    return given is not None and any(map(is_rank, (*(given.items or ()), *given.attrs.values())))


_ROWS = ("gather_object", "all_gather_object")
_APART = r"(?i)\bensemble|committee|\bbagging|\bk_?folds?\b|\bfolds?\b|cross.?validat|\bsweep|\bpopulation|\btrials?\b"
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

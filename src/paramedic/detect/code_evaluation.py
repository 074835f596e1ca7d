"""Programs whose validation tells something else than it seems to."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paramedic.detect.every import every_distributed_program, every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import COLLECTIVES, backwards, forwards, hit
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op, Value

_SHOWS = frozenset(
    [
        "print",
        "info",
        "log",
        "write",
        "add_scalar",
        "add_scalars",
        "warning",
        "debug",
        "save",
        "dump",
        "log_metrics",
        "report",
        "echo",
    ]
)


def _changes_in_training(model: Value) -> bool:
    """Layers that do something else while training."""
    tags = model.tags | model.base.tags
    return any(
        tag.startswith(
            ("part:Dropout", "part:BatchNorm", "part:SyncBatchNorm", "part:AlphaDropout", "part:InstanceNorm")
        )
        for tag in tags
    )


def _modes(flow: Flow, model: Value) -> list[tuple[int, str, Op]]:
    """`train()` and `eval()` of that model, or of something that cannot be followed."""
    found = []
    for op in flow.calls("train", "eval"):
        of = op.of
        if of is None or not op.name.startswith("."):
            continue
        if (of.kind == "model" and of.base is model.base) or (of.kind in ("", "instance")):
            mode = op.args[0].const if op.args and op.last == "train" else None
            found.append((op.index, "eval" if mode is False else op.last, op))
    return found


@every_program("forward")
def validated_in_training_mode(flow: Flow) -> Iterator[Hit]:
    trained = {id(one.loss.root) for one in backwards(flow) if one.loss.root is not None}
    for op in forwards(flow):
        model = op.of
        if model is None or not op.no_grad or id(model.base) not in trained or not _changes_in_training(model):
            continue
        if flow.mentions(r"\.training\s*=|set_train|model_mode|eval_mode|evaluating\("):
            continue
        before = [mode for mode in _modes(flow, model) if mode[0] < op.index]
        if any(mode[1] == "eval" for mode in _modes(flow, model) if mode[0] > op.index) and not before:
            continue
        if not before or before[-1][1] == "train":
            if any(mode[2].of is not None and mode[2].of.kind == "" for mode in before):
                continue
            yield hit(op, name=_name(model))


def _name(model: Value) -> str:
    tags = sorted(
        tag[5:]
        for tag in model.tags | model.base.tags
        if tag.startswith(("part:Dropout", "part:BatchNorm", "part:SyncBatchNorm"))
    )
    return " and ".join(tags[:2])


@every_program("train", "eval")
def never_back_to_training(flow: Flow) -> Iterator[Hit]:
    """`eval()` inside the loop, `train()` before it or nowhere: from the second round on training is not training."""
    for backward in backwards(flow):
        root = backward.loss.root
        if root is None or not _changes_in_training(root):
            continue
        modes = _modes(flow, root)
        for index, word, op in modes:
            shared = [loop for loop in op.loops if backward.op.within(loop)]
            if word != "eval" or not shared or (op.of is not None and op.of.kind == ""):
                continue
            outer = shared[0]
            if not any(other == "train" and one.within(outer) for _, other, one in modes) and index > 0:
                yield hit(op, backward.op)


@every_distributed_program("forward")
def metric_of_one_shard(flow: Flow) -> Iterator[Hit]:
    """Computed on one rank's part of the data, told by the first rank as if on all of it."""
    evaluated = [
        op
        for op in forwards(flow)
        if op.no_grad
        and op.args
        and any(v.has("shard", "rank") for v in op.args)
        and not any(v.has("parameter") for v in op.args)
    ]
    if not evaluated:
        return
    first = evaluated[0]
    gathers = [
        op
        for op in flow.ops
        if op.index > first.index
        and (op.last in COLLECTIVES or re.search(r"(?i)gather|reduce(?!_mean|_sum)|sync|all_ranks", op.last))
    ]
    if gathers or flow.mentions(r"torchmetrics|\bMetric\b|evaluate\.load|gather_for_metrics"):
        return
    for op in flow.ops[first.index :]:
        if op.kind != "call" or op.label != "first" or op.last not in _SHOWS:
            continue
        values = [*op.args, *op.keywords.values()]
        told = [v for v in values if v.has("output") and v.has("shard", "rank") and not v.has("loaded", "parameter")]
        if told and not any(_from_training(flow, v) for v in told):
            yield hit(op, first)
            break


def _from_training(flow: Flow, value: Value) -> bool:
    """The loss of the training step is usually told by one rank, and nobody minds."""
    if value.kind == "text":
        shown = [part for part in value.attrs.values() if part.has("output")]
        return bool(shown) and all(_from_training(flow, part) for part in shown)
    made = value.made
    for _ in range(6):
        if made is None:
            return False
        if made.last in ("item", "detach", "float") and made.of is not None:
            if any(
                one.loss is made.of or (one.loss.root is not None and made.of.has("graph")) for one in backwards(flow)
            ):
                return True
            made = made.of.made if made.of.made is not made else None
            continue
        return made.result.has("graph")
    return False


@every_program("gather")
def repeated_samples_gathered(flow: Flow) -> Iterator[Hit]:
    """accelerate fills up the last batch with samples from the front; `gather` keeps them."""
    if flow.has("gather_for_metrics"):
        return
    if flow.mentions(r"\.remainder|samples_seen|drop_last=True|even_batches=False|\[: ?len\(|truncat"):
        return
    for op in flow.calls("gather"):
        of = op.of
        if of is None or of.kind != "accelerator" or not op.loops:
            continue
        over = op.loops[-1].over.attrs.get("over", op.loops[-1].over)
        values = [v for one in op.args for v in (one.items or [one])]
        if over.kind == "loader" and over.has("prepared", "parameter") and any(_is_prediction(v) for v in values):
            if any(op.loops[-1] is one.loop for one in backwards(flow)):
                continue
            yield hit(op)


def _is_prediction(value: Value) -> bool:
    made = value.made
    return (
        value.has("output")
        and made is not None
        and (made.last in ("argmax", "forward", "topk", "softmax", "sigmoid", "max", "squeeze") or value.has("output"))
    )


@every_distributed_program("DistributedSampler")
def padded_evaluation(flow: Flow) -> Iterator[Hit]:
    """DistributedSampler repeats samples so that all ranks have as many; sums over ranks count them twice."""
    for op in forwards(flow):
        if not op.no_grad or not op.loops:
            continue
        over = op.loops[-1].over.attrs.get("over", op.loops[-1].over)
        sampler = over.attrs.get("sampler") if over.kind == "loader" else None
        if sampler is None or sampler.name != "DistributedSampler" or sampler.made is None:
            continue
        drop = sampler.made.argument("drop_last")
        after = [one for one in flow.calls("all_reduce", "all_gather", "all_gather_object") if one.index > op.index]
        if after and (drop is None or drop.const is not True) and not flow.mentions(r"len\(\w*sampler|\[: ?len\("):
            yield hit(sampler.made, after[0])

"""Programs whose validation tells something else than it seems to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.every import every_distributed_program, every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import COLLECTIVES, backwards, forwards, hit
from paramedic.detect.program import text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import UNPACKED, Op, Value

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


_DEEP = 12


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
            if before and _is_meant(before[-1][2], op):
                continue
            yield hit(op, name=_name(model))


def _is_meant(mode: Op, op: Op) -> bool:
    """`train()` where no gradients are asked for, in the function that computes: dropout as a sample of models."""
    return mode.no_grad and mode.stack == op.stack and mode.module is op.module and mode.line < op.line


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
        and any(v.has("shard") or (v.has("rank") and not v.has("own draw")) for v in op.args)
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


def _from_training(flow: Flow, value: Value, depth: int = 0) -> bool:
    """The loss of the training step is usually told by one rank, and nobody minds; so is what was added up of it."""
    shown = [part for part in _put_together(value) if part.has("output")]
    if shown and depth < _DEEP:
        return all(_from_training(flow, part, depth + 1) for part in shown)
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


def _put_together(value: Value) -> list[Value]:
    """Of which values a text, a tuple, a sum or a quotient is."""
    if value.kind == "text":
        return list(value.attrs.values())
    if "left" in value.attrs:
        return [value.attrs["left"], value.attrs["right"]]
    if value.items:
        return value.items
    made = value.made
    if made is not None and made.kind == "augassign" and made.of is not None:
        return [made.of, *made.args]
    return []


@every_program("gather")
def repeated_samples_gathered(flow: Flow) -> Iterator[Hit]:
    """accelerate fills up the last batch with samples from the front; `gather` keeps them."""
    if flow.has("gather_for_metrics"):
        return
    if flow.mentions(r"\.remainder|samples_seen|even_batches=False|\[: ?len\(|truncat"):
        return
    for op in flow.calls("gather"):
        of = op.of
        if of is None or of.kind != "accelerator" or not op.loops:
            continue
        over = op.loops[-1].through
        values = [v for one in op.args for v in (one.items or [one])]
        if over.kind == "loader" and over.has("prepared", "parameter") and any(_is_prediction(v) for v in values):
            if any(op.loops[-1] is one.loop for one in backwards(flow)) or _drops_last(over):
                continue
            yield hit(op)


def _drops_last(loader: Value) -> bool:
    """As it was made, before it was prepared; of one that is not known, as any of the program is."""
    own = loader.root or loader
    given = own.made.keywords.get("drop_last") if own.made is not None and own.made.last == "DataLoader" else None
    return given is not None and given.const is True


def _is_prediction(value: Value) -> bool:
    made = value.made
    return (
        value.has("output")
        and made is not None
        and (made.last in ("argmax", "forward", "topk", "softmax", "sigmoid", "max", "squeeze") or value.has("output"))
    )


_LEFT_OUT = (
    r"len\(\w*sampler|\[: ?(?:len\(|self\.num|n\b|n_|num|total|size)|unique\(|dedup|drop_duplicates|gather_for_metrics"
)
"""Words of programs that cut off what was filled up, or count each row once."""


@every_distributed_program("DistributedSampler")
def padded_evaluation(flow: Flow) -> Iterator[Hit]:
    """DistributedSampler repeats samples so that all ranks have as many; sums over ranks count them twice."""
    for op in forwards(flow):
        if not op.no_grad or not op.loops:
            continue
        over = op.loops[-1].through
        sampler = over.attrs.get("sampler") if over.kind == "loader" else None
        if sampler is None or sampler.name != "DistributedSampler" or sampler.made is None:
            continue
        drop = sampler.made.argument("drop_last")
        after = [one for one in flow.calls("all_reduce", "all_gather", "all_gather_object") if one.index > op.index]
        if after and (drop is None or drop.const is not True) and not flow.mentions(_LEFT_OUT):
            yield hit(sampler.made, after[0])


_GATHERS = {
    "all_gather": (0, 1), "all_gather_object": (0, 1), "all_gather_into_tensor": (0, 1), "gather": (1, 0),
    "gather_object": (1, 0),
}  # fmt: skip
"""Where the parts of all ranks go, and what each gives."""
_JOINS = ("cat", "concat", "concatenate", "vstack", "hstack", "chain", "from_iterable", "sum")
_ROWS = frozenset(
    ("cat", "concat", "concatenate", "to", "cpu", "cuda", "float", "double", "half", "long", "int", "bool", "tolist",
     "numpy", "array", "asarray", "argmax", "max", "topk", "softmax", "log_softmax", "sigmoid", "round", "exp",
     "squeeze", "detach", "clone", "contiguous", "enumerate", "zip", "list", "tqdm")
)  # fmt: skip
"""What keeps each row where it was."""
_TOTALS = frozenset(("mean", "sum", "std", "numel", "size", "len", "any", "all", "unique", "bincount", "print"))
_WRITES = frozenset(("writerow", "write", "writelines"))


@every_distributed_program("DistributedSampler")
def gathered_in_rank_order(flow: Flow) -> Iterator[Hit]:
    """Rank r holds samples r, r + world, ...: its rows behind those of rank r - 1 are not in the data set's order."""
    for op in flow.calls(*_GATHERS):
        sampler = _dealt_by(flow, op)
        if sampler is None or sampler.made is None:
            continue
        for joined in _joined_parts(flow, op):
            if _used_in_order(flow, op, joined, sampler.made.argument("dataset", 0)):
                yield hit(joined.made or op, sampler.made)
                break


def _dealt_by(flow: Flow, op: Op) -> Value | None:
    """The sampler that deals out, unshuffled, what the gathered outputs were computed from."""
    given = op.argument("", _GATHERS[op.last][1])
    if given is None or not given.has("output") or op.of is None or op.name.startswith("."):
        return None
    before = [one for one in forwards(flow) if one.index < op.index and one.no_grad and one.loops]
    over = before[-1].loops[-1].over if before else Value()
    sampler = over.attrs.get("over", over).attrs.get("sampler")
    if sampler is None or sampler.name != "DistributedSampler" or sampler.made is None:
        return None
    shuffle = sampler.made.argument("shuffle", 3)
    return sampler if shuffle is not None and shuffle.const is False else None


def _joined_parts(flow: Flow, op: Op) -> Iterator[Value]:
    """The parts of all ranks, one behind the other."""
    parts = op.argument("", _GATHERS[op.last][0])
    if parts is None or not isinstance(op.node, ast.Call) or len(op.node.args) <= _GATHERS[op.last][0]:
        return
    if op.last == "all_gather_into_tensor":
        yield parts
    name = text_of(op.node.args[_GATHERS[op.last][0]])
    for one in flow.calls(*_JOINS):
        first = one.args[0] if one.index > op.index and one.args else None
        dim = one.argument("dim", 1) or one.argument("axis")
        if first is None or (one.last != "chain" and dim is not None and dim.number() not in (None, 0)):
            continue
        if first is parts or (one.stack == op.stack and _from_each(first.node, name)):
            yield one.result
    yield from (value for value in _listed(flow, op) if _from_each(value.node, name, 2))


def _listed(flow: Flow, op: Op) -> Iterator[Value]:
    """Lists that comprehensions make, as later calls get them."""
    for one in flow.ops[op.index + 1 :]:
        for value in (one.of, *one.args, *(loop.over for loop in one.loops)):
            for found in _below(value) if value is not None else ():
                if isinstance(found.node, ast.ListComp):
                    yield found


def _from_each(node: ast.AST | None, name: str, depth: int = 1) -> bool:
    """`[part.cpu() for part in parts]`, or with two loops `[row for part in parts for row in part]`."""
    return (
        isinstance(node, ast.ListComp)
        and len(node.generators) == depth
        and text_of(node.generators[0].iter) == name
        and (depth == 1 or text_of(node.generators[1].iter) == text_of(node.generators[0].target))
    )


def _below(value: Value, depth: int = 0) -> Iterator[Value]:
    """The value and those whose rows it has, one by one."""
    yield value
    if depth > 9:
        return
    inner: list[Value] = []
    if "sliced" in value.attrs:
        by = value.attrs["by"]
        if by.kind == "slice" or by.number() is not None or all(one.kind == "slice" for one in by.items or [by]):
            inner = [value.attrs["sliced"]]
    elif "left" in value.attrs:
        inner = [value.attrs["left"], value.attrs["right"]]
    elif value.made is not None and value.made.last in _ROWS:
        inner = [*value.made.args]
        if value.made.of is not None and value.made.name.startswith("."):
            inner.append(value.made.of)
    inner += value.items or []
    for one in inner:
        yield from _below(one, depth + 1)


def _used_in_order(flow: Flow, op: Op, joined: Value, dataset: Value | None) -> bool:
    others = [one for one in flow.calls(*_GATHERS) if one.stack == op.stack and not _outputs_alone(flow, one)]
    for one in flow.ops[op.index + 1 :]:
        given = [value for value in (one.of, *one.args, *one.keywords.values()) if value is not None]
        if any(_is_looked_up(found, joined) for value in given for found in _below(value)):
            return True
        if others:
            continue
        if one.last not in _TOTALS and any(
            _is_cut(found, joined, dataset) for value in given for found in _below(value)
        ):
            return True
        overs = [loop.over for loop in one.loops if loop not in op.loops]
        if one.last in _WRITES and any(_has_rows(over, joined) for over in overs):
            return True
        if one.last == "writerows" and any(_has_rows(value, joined) for value in one.args):
            return True
    return False


def _has_rows(value: Value, joined: Value) -> bool:
    return any(one is joined for one in _below(value))


def _is_cut(value: Value, joined: Value, dataset: Value | None) -> bool:
    """`[: len(dataset)]`."""
    by = value.attrs.get("by")
    if by is None or by.kind != "slice" or len(by.items or ()) != 1 or "sliced" not in value.attrs:
        return False
    length = (by.items or [Value()])[0]
    counted = length.attrs.get("of", Value())
    columns = dataset.attrs.get("tensors", Value()).items or [] if dataset is not None else []
    known = counted is dataset or counted.kind == "dataset" or any(counted is one for one in columns)
    whole = length.has("len") and (known or counted.name == ".dataset")
    return whole and _has_rows(value.attrs["sliced"], joined)


def _is_looked_up(value: Value, joined: Value) -> bool:
    """A table whose rows are taken by what a loader gives."""
    by = value.attrs.get("by")
    if by is None or "sliced" not in value.attrs:
        return False
    while by.made is not None and by.made.last in ("to", "cuda", "cpu", "long") and by.made.of is not None:
        by = by.made.of
    given = by.has("data") and not by.has("output") and (by.name == UNPACKED or "loader" in by.attrs)
    return given and _has_rows(value.attrs["sliced"], joined)


def _outputs_alone(flow: Flow, op: Op) -> bool:
    """Nothing that says which sample a row is of is gathered with them."""
    given = op.argument("", _GATHERS[op.last][1])
    if given is None or not given.has("output"):
        return False
    added = [one.args[0] for one in flow.calls("append", "extend") if one.of is given and one.args]
    numbered = [one for one in flow.of_kind("setitem") if one.of is given]
    return not numbered and all(_is_output(one) for one in (given, *added))


def _is_output(value: Value, depth: int = 0) -> bool:
    if value.made is not None and value.made.last in ("zip", "dict", "list"):
        return all(_is_output(one, depth + 1) for one in value.made.args) if depth < 5 else False
    inner = [*(value.items or ()), *([value.element] if value.element is not None else [])]
    if value.kind == "dict":
        inner += value.attrs.values()
    return (value.has("output") or bool(inner)) and (depth > 4 or all(_is_output(one, depth + 1) for one in inner))

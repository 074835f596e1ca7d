"""Where a value comes from: whether it is of one rank's own part of the data, and what it was computed of."""

from __future__ import annotations

from collections.abc import Iterator

from paramedic.detect.flow import Flow
from paramedic.detect.loops import COLLECTIVES, backwards
from paramedic.detect.values import Op, Value

_MOST = 600
_KEYS = (
    "left", "right", "sliced", "by", "of", "sides", "over", "each of", "loader", "dataset", "sampler", "batch_sampler",
    "tensors",
)  # fmt: skip
_MOVES = frozenset(("to", "cuda", "cpu", "device", "set_device", "pin_memory", "xpu"))
"""What a rank's number does not change the content by."""
_READS = frozenset(
    ("open", "load", "read_csv", "read_parquet", "read_json", "read_table", "loadtxt", "genfromtxt", "memmap",
     "read_text", "load_dataset", "from_file", "fromfile", "listdir", "glob", "iglob", "loads", "read_pickle", "File",
     "range", "arange", "islice")
)  # fmt: skip


def inner(value: Value) -> Iterator[Value]:
    """The value and those it was computed of; not what only decides on which device it is."""
    waiting, seen = [value], {id(value)}
    for one in waiting:
        yield one
        if len(waiting) > _MOST:
            continue
        for part in _parts(one):
            if id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)


def _parts(value: Value) -> Iterator[Value]:
    for key in _KEYS:
        if key in value.attrs:
            yield value.attrs[key]
    yield from value.items or ()
    if value.element is not None:
        yield value.element
    if value.kind in ("text", "dict"):
        yield from value.attrs.values()
    made = value.made
    if made is None:
        return
    if made.of is not None and (made.kind != "call" or made.name.startswith(".")):
        yield made.of
    if made.last not in _MOVES:
        yield from made.args
        yield from (one for key, one in made.keywords.items() if key not in ("device", "group", "generator"))


def own_part(value: Value) -> bool:
    """One rank's part of the data: dealt out by its number, read from its file, or drawn by its generator."""
    if not value.has("rank", "shard"):
        return False
    return any(_deals(one) for one in inner(value))


def _deals(value: Value) -> bool:
    if value.has("shard", "own draw"):
        return True
    by = value.attrs.get("by")
    if by is not None and by.has("rank") and by.name != "[rank]" and not value.attrs["sliced"].has("rank"):
        return True
    made = value.made
    return (
        made is not None
        and made.kind == "call"
        and made.last in _READS
        and any(one.has("rank") for one in (*made.args, *([made.of] if made.of is not None else [])))
    )


def reduced(flow: Flow, value: Value, until: int) -> bool:
    """Something that it is computed of, or the value itself, went through a collective before that operation."""
    parts = {id(one) for one in inner(value)}
    for op in flow.ops[:until]:
        if op.kind == "call" and (op.last in COLLECTIVES or "reduce" in op.last or "gather" in op.last):
            given = [*op.args, *op.keywords.values(), *(loop.over for loop in op.loops)]
            if any(id(part) in parts for one in given for part in (one, *(one.items or ()))):
                return True
    return False


def trains(flow: Flow, op: Op) -> bool:
    """Inside a loop around a backward pass."""
    return any(op.within(loop) for one in backwards(flow) for loop in one.op.loops)

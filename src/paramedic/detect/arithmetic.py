"""What becomes of values in arithmetic, and where branches meet."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from paramedic.detect.values import MOST_CHOSEN, NOTHING, Value
from paramedic.syntax import MOST_BITS

SCALES = frozenset(("/n", "/world", "*world", "len", "mod", "count", "len:prepared"))


def union(values: Sequence[Value]) -> frozenset[str]:
    tags: frozenset[str] = frozenset()
    for value in values:
        if value.tags:
            tags |= value.tags
    return tags


def flowing(values: Sequence[Value]) -> frozenset[str]:
    """What a result depends on; how numbers beside a graph were scaled does not scale it."""
    tags: frozenset[str] = frozenset()
    graph = any("graph" in value.tags or "grad" in value.tags for value in values)
    for value in values:
        tags |= value.tags - SCALES if graph and not value.has("graph", "grad") else value.tags
    return tags


def own_draw(generator: Value) -> frozenset[str]:
    """Numbers that differ between ranks because they are drawn, not because each has a part of something."""
    return frozenset({"own draw"}) if "rank" in generator.tags else frozenset()


def by_rank(value: Value, test: Value) -> Value:
    """What is chosen by the rank depends on the rank."""
    if "rank" not in test.tags or value.has("rank") or value.kind in ("model", "optimizer", "scheduler", "function"):
        return value
    return Value(
        value.kind, value.tags | {"rank"}, value.name, attrs=value.attrs, root=value.root, wrap=value.wrap,
        items=[by_rank(item, test) for item in value.items] if value.items is not None and _is_small(value) else None,
        made=value.made, node=value.node, module=value.module, bases=value.bases, element=value.element,
    )  # fmt: skip


def joined(one: Value, other: Value) -> Value:
    """Either of two values; what is known of both is kept."""
    if one is other or (other.known and other.const is None):
        return one
    for inner, outer in ((one, other), (other, one)):
        if inner.attrs.get("outer") is outer:
            return inner  # `model.module` where there is one: what a helper that unwraps gives
    if one.known and one.const is None:
        return other
    better, worse = (one, other) if (one.kind and not other.kind) or one.wrap or not other.wrap else (other, one)
    if other.wrap and not one.wrap:
        better, worse = other, one
    items = better.items
    if one.items is not None and other.items is not None and len(one.items) == len(other.items):
        small = _is_small(one) and _is_small(other)
        items = [joined(a, b) for a, b in zip(one.items, other.items, strict=True)] if small else None
    result = Value(
        better.kind or worse.kind, one.tags | other.tags, better.name or worse.name, items=items,
        attrs={**worse.attrs, **better.attrs}, root=better.root or worse.root, wrap=better.wrap or worse.wrap,
        made=better.made or worse.made, node=better.node or worse.node, module=better.module or worse.module,
        label=better.label if one.label == other.label else "", bases=better.bases or worse.bases,
        element=better.element or worse.element,
    )  # fmt: skip
    if one.known and other.known and one.const == other.const:
        result.const = one.const
    if better.kind == "model" and result.root is None:
        result.root = better.base
    return result


def _is_small(value: Value) -> bool:
    """Also where a list holds itself."""
    waiting = [value]
    for one in waiting:
        waiting += one.items or ()
        if len(waiting) > MOST_CHOSEN:
            return False
    return True


def either(values: Sequence[Value]) -> Value:
    result = values[0]
    for value in values[1:]:
        result = joined(value, result)
    return result


def combined(op: ast.operator, left: Value, right: Value) -> Value:
    tags = left.tags | right.tags
    a, b = left.number(), right.number()
    if isinstance(op, ast.Div | ast.FloorDiv):
        tags = left.tags
        if left.has("graph", "grad") or left.kind == "number":
            if "world" in right.tags:
                tags |= {"/world"}
            if (
                (right.kind == "number" and not right.has("graph"))
                or right.has("len")
                or not right.has("graph", "output", "data")
            ):
                tags |= {"/n"}
        tags |= right.tags - SCALES - {"world", "graph"}
    elif isinstance(op, ast.Mult):
        if right.kind == "list" or left.kind == "list":
            repeated = left if left.kind == "list" else right
            return Value(
                "list",
                tags,
                items=repeated.items,
                name="repeated",
                element=repeated.items[0] if repeated.items else None,
            )
        if "world" in tags and ("graph" in tags or "grad" in tags):
            tags = (tags - {"world"}) | {"*world"}
        if (b is not None and 0 < abs(b) < 1) or (a is not None and 0 < abs(a) < 1):
            tags |= {"/n"}
    elif isinstance(op, ast.BitOr) and left.kind == "dict":
        return Value("dict", tags, attrs={**left.attrs, **right.attrs}, node=left.node)
    elif isinstance(op, ast.Add | ast.Sub) and left.items is None:
        tags = flowing([left, right])
    elif isinstance(op, ast.Add) and left.items is not None and right.items is not None and left.kind == "list":
        return Value("list", tags, items=[*left.items, *right.items])
    if isinstance(op, ast.Mod):
        tags = tags | {"mod"}
    root = left.root if left.has("graph") or left.kind == "params" else right.root
    kind = (
        "number"
        if left.kind == right.kind == "number"
        else left.kind
        if left.kind in ("tensor", "params", "batch")
        else right.kind
        if right.kind in ("tensor", "batch")
        else ""
    )
    result = Value(
        kind, tags, root=root, made=left.made, attrs={"left": left, "right": right, "op": Value(name=type(op).__name__)}
    )
    if a is not None and b is not None:
        try:
            match op:
                case ast.Add():
                    result.const = a + b
                case ast.Sub():
                    result.const = a - b
                case ast.Mult():
                    result.const = a * b
                case ast.Div() if b:
                    result.const = a / b
                case ast.FloorDiv() if b:
                    result.const = a // b
                case ast.Pow() if abs(b) < 64 and abs(a) < 1000:
                    result.const = a**b
                case _:
                    pass
        except (OverflowError, ZeroDivisionError, TypeError):
            pass
        if isinstance(result.const, int) and result.const.bit_length() > MOST_BITS:
            result.const = NOTHING
    return result

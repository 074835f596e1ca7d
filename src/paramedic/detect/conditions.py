"""Conditions: which ranks go on behind one, and which can never hold."""

from __future__ import annotations

import ast

from paramedic.detect.program import text_of
from paramedic.detect.values import Value
from paramedic.detect.vocabulary import FIRST, RANK

OPPOSITE = {"first": "others", "others": "first"}
NEVER = "never"
"""A comparison whose answer is the same in every round."""


def is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in text_of(node.test)


def guard_of(test: ast.expr) -> str:
    """By names alone."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = guard_of(test.operand)
        return OPPOSITE.get(inner, inner)
    if isinstance(test, ast.Call):
        return guard_of(test.func)
    if isinstance(test, ast.Name | ast.Attribute):
        name = test.id if isinstance(test, ast.Name) else test.attr
        return "first" if FIRST.search(name) else "others" if RANK.search(name) else ""
    return ""


def compared(op: ast.cmpop, right: Value, node: ast.expr) -> tuple[str, str]:
    value = right.const if right.known else None
    text = str(value) if value is not None else text_of(node)
    if isinstance(op, ast.Eq):
        return ("first" if value == 0 else "some"), text
    if isinstance(op, ast.NotEq):
        return ("others" if value == 0 else "some"), ""
    if (isinstance(op, ast.Gt) and value == 0) or (isinstance(op, ast.GtE) and value == 1):
        return "others", ""
    if (isinstance(op, ast.Lt) and value == 1) or (isinstance(op, ast.LtE) and value == 0):
        return "first", "0"
    if isinstance(op, ast.In) and isinstance(node, ast.Tuple | ast.List | ast.Set):
        return ("first" if {text_of(item) for item in node.elts} == {"-1", "0"} else "some"), ""
    return "some", ""


def is_rank(value: Value) -> bool:
    """The rank itself, or the rank modulo something."""
    if not value.has("rank") or not value.tags <= {"rank", "local", "world", "mesh", "mod", "parameter"} or value.known:
        return False
    op = value.attrs.get("op")
    return op is None or op.name == "Mod"


def never_equal(one: Value, other: Value) -> bool:
    """`i == n` for i below n, or `i % n == n`."""
    for left, right in ((one, other), (other, one)):
        op = left.attrs.get("op")
        if op is not None:
            if op.name == "Mod" and same_number(left.attrs["right"], right):
                return True
            continue
        below, over = left.attrs.get("below"), left.attrs.get("over")
        if below is not None and same_number(below, right):
            return True
        if over is not None and "op" not in right.attrs and right.has("len") and right.attrs.get("of") is over:
            return True
    return False


def same_number(one: Value, other: Value) -> bool:
    if one is other:
        return one.name != "parameter" and not one.items
    return one.number() is not None and one.number() == other.number()


def node_is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant | ast.UnaryOp)


def leaves(node: ast.stmt) -> bool:
    return isinstance(node, ast.Return | ast.Continue | ast.Raise | ast.Break) or (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and text_of(node.value.func) in ("exit", "sys.exit")
    )

"""Numbers that a program sets: written where they are used, by a default, or in a table of settings."""

from __future__ import annotations

import ast
import re

from paramedic.detect.flow import Flow
from paramedic.detect.program import text_of
from paramedic.detect.values import Value

_NUMBER = r"(\d[\d_]*(?:\.\d*)?(?:[eE][+-]?\d+)?)"


def written(flow: Flow, node: ast.expr, depth: int = 0) -> float | None:
    """A number as it is written, or what the only setting of that name says; a name that was given one is looked up."""
    if isinstance(node, ast.Constant):
        return float(node.value) if isinstance(node.value, int | float) else None
    if isinstance(node, ast.Subscript):
        return setting(flow, str(getattr(node.slice, "value", "")))
    name = text_of(node).rsplit(".", 1)[-1]
    given = [
        one.value
        for module in flow.nodes
        for one in module.statements
        if isinstance(one, ast.Assign) and [text_of(target) for target in one.targets] == [name]
    ]
    if len(given) == 1 and isinstance(given[0], ast.Constant | ast.Subscript | ast.Attribute) and not depth:
        return written(flow, given[0], depth + 1)
    return setting(flow, name) if not given else None


def settled(flow: Flow, value: Value | None) -> float | None:
    """A number that is known, or a sum of a setting and a known one."""
    if value is None:
        return None
    number = value.number()
    if number is not None:
        return number
    op, left, right = value.attrs.get("op"), value.attrs.get("left"), value.attrs.get("right")
    if op is not None and left is not None and right is not None and op.name in ("Add", "Sub"):
        one, other = settled(flow, left), settled(flow, right)
        if one is None or other is None:
            return None
        return one + other if op.name == "Add" else one - other
    return setting(flow, value.name.strip("[].")) if op is None else None


def setting(flow: Flow, name: str) -> float | None:
    """What a name is set to in the program: by a default, a field, an entry of a table or a line of YAML, if only one
    number is."""
    if not name.isidentifier():
        return None
    key = re.escape(name).replace("_", "[_-]")
    pattern = re.compile(
        rf"(?<![\w-]){key}['\"]?\s*(?::\s*(?:int|float)\s*=|:|=)\s*{_NUMBER}(?![\w.])"
        rf"|--{key}['\"][^\n]*\bdefault\s*=\s*{_NUMBER}(?![\w.])"
    )
    found = {float(one or other) for module in flow.nodes for one, other in pattern.findall(module.text)}
    return found.pop() if len(found) == 1 else None

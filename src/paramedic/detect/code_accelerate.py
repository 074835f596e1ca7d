"""What accelerate saves and brings back: only what it was given, and only what it had by then."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramedic.detect.every import every_file, every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import at, hit
from paramedic.detect.program import Function, Module, text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op

_BOTH = {"state_dict", "load_state_dict"}


def _of_accelerator(flow: Flow, name: str) -> list[Op]:
    return [op for op in flow.calls(name) if op.of is not None and op.of.kind == "accelerator"]


@every_program("load_state")
def loaded_before_prepared(flow: Flow) -> Iterator[Hit]:
    """`load_state` before `prepare` has neither a model nor an optimizer to bring back."""
    prepared = [op for op in _of_accelerator(flow, "prepare") if op.args or op.starred]
    for op in _of_accelerator(flow, "load_state"):
        if prepared and op.index < min(one.index for one in prepared):
            yield hit(op, prepared[0])


@every_file("save_state")
def state_not_registered(flow: Flow, module: Module) -> Iterator[Hit]:
    """An average of the weights, or the like, with a state of its own that changes in every step, and that neither
    `prepare` nor `register_for_checkpointing` was given."""
    if not (_of_accelerator(flow, "save_state") and _of_accelerator(flow, "load_state")) or flow.has(
        "register_save_state_pre_hook", "register_load_state_pre_hook"
    ):
        return
    kept = {
        cls.name
        for cls in module.classes.values()
        if {one.name for one in cls.body if isinstance(one, Function)} >= _BOTH
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and text_of(node.value.func) in kept:
            name = text_of(node.targets[0])
            if _changes(module, name) and not _is_given(module, name):
                yield at(module, node, what=name)


def _changes(module: Module, name: str) -> bool:
    """A method of it is called in a loop."""
    return any(
        isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and text_of(call.func.value) == name
        for loop in ast.walk(module.tree)
        if isinstance(loop, ast.For | ast.While)
        for call in ast.walk(loop)
    )


def _is_given(module: Module, name: str) -> bool:
    """To accelerate; or its state is taken by hand."""
    for call in ast.walk(module.tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr in ("prepare", "register_for_checkpointing"):
            if any(text_of(part) == name for one in call.args for part in ast.walk(one) if isinstance(part, ast.expr)):
                return True
        elif call.func.attr in _BOTH and text_of(call.func.value) == name:
            return True
    return False


@every_program("backward")
def divided_twice(flow: Flow) -> Iterator[Hit]:
    """`accelerator.backward` divides by the steps that the accelerator was told to accumulate; the program did so
    before."""
    asked = [op for op in flow.calls("Accelerator") if "gradient_accumulation_steps" in op.keywords]
    counts = {text_of(key.value) for op in asked for key in _keywords(op) if key.arg == "gradient_accumulation_steps"}
    if len(counts) != 1 or counts <= {"1", "None"}:
        return
    (count,) = counts
    divisors = {count, f"{_called(flow)}.gradient_accumulation_steps"}
    for op in _of_accelerator(flow, "backward"):
        given = op.node.args[0] if isinstance(op.node, ast.Call) and op.node.args else None
        divided: list[ast.AST] = [given] if given is not None else []
        if isinstance(given, ast.Name):
            divided += _assigned(op, given.id)
        if any(_divides(one, divisors) for one in divided):
            yield hit(op, asked[0], what=count)


def _keywords(op: Op) -> list[ast.keyword]:
    return op.node.keywords if isinstance(op.node, ast.Call) else []


def _called(flow: Flow) -> str:
    """What the program calls its accelerator."""
    calls = (op.node for op in _of_accelerator(flow, "backward"))
    named = (
        text_of(call.func.value)
        for call in calls
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    )
    return next(named, "accelerator")


def _assigned(op: Op, name: str) -> list[ast.AST]:
    """Where the loss got its value, in the lines of the same loop before."""
    body = op.loops[-1].node if op.loops else op.module.tree
    return [
        node if isinstance(node, ast.AugAssign) else node.value
        for node in ast.walk(body)
        if (isinstance(node, ast.Assign) and [text_of(one) for one in node.targets] == [name])
        or (isinstance(node, ast.AugAssign) and text_of(node.target) == name)
        if node.lineno < op.line
    ]


def _divides(node: ast.AST, divisors: set[str]) -> bool:
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Div) and text_of(node.value) in divisors
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and text_of(node.right) in divisors

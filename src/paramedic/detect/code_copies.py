"""Copies that are taken too early, averaged too seldom, or live in another process than the one that changes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.every import every_distributed_program, every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import (
    averages,
    backwards,
    behind_modulo,
    conditional,
    first_backward,
    forwards,
    gradient_reductions,
    hit,
    model_parallel,
    training_loops,
    wrapped,
)
from paramedic.detect.numbers import settled, written
from paramedic.detect.program import Function, text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Loop, Op, Value

_SENDS = ("broadcast", "broadcast_object_list", "broadcast_parameters", "_sync_module_states", "broadcast_coalesced")


@every_distributed_program("deepcopy", "AveragedModel")
def copied_before_broadcast(flow: Flow) -> Iterator[Hit]:
    """A copy of the model from before DDP sends the first rank's weights, where ranks draw their own."""
    if flow.has(*_SENDS) or model_parallel(flow):
        return
    wraps = {id(op.result.base): op for op in wrapped(flow, "ddp")}
    for copy in flow.calls("deepcopy", "AveragedModel"):
        model = copy.args[0] if copy.args else None
        wrap = wraps.get(id(model.base)) if model is not None and model.kind == "model" else None
        if model is None or wrap is None or wrap.index < copy.index or copy.label or id(copy.result.base) in wraps:
            continue
        how = _drawn_apart(flow, model, copy)
        used = [op for op in forwards(flow, copy.result.base) if op.index > wrap.index and _by_all(op)]
        if how and used and not _loaded(flow, model, copy) and not _set_anew(flow, copy, wrap):
            yield hit(copy, wrap, how=how)


def _by_all(op: Op) -> bool:
    """On every rank, and no other model in its place."""
    return not op.label and op.of is not None and "or else" not in op.of.attrs


def _drawn_apart(flow: Flow, model: Value, copy: Op) -> str:
    """Why the weights are not alike on all ranks when they are copied."""
    made = model.base.made
    born = made.index if made is not None else copy.index
    if model.has("part:library"):
        return ""
    seeds = [op for op in flow.seeds if op.index < born]
    if not seeds:
        return "" if flow.seeds or flow.mentions(r"seed") else "no seed is set"
    drawn = any(value.has("rank") for value in (*seeds[-1].args, *seeds[-1].keywords.values()))
    return "the seed differs between ranks" if drawn else ""


_IN_PLACE = ("copy_", "mul_", "lerp_", "add_", "set_", "data")


def _set_anew(flow: Flow, copy: Op, wrap: Op) -> bool:
    """Once the ranks are alike, and before they train, the copy's weights are set once more."""
    for op in flow.ops[wrap.index : first_backward(flow)]:
        if op.of is not None and op.of.kind == "params" and op.of.root is copy.result.base and op.last in _IN_PLACE:
            if not any(op.within(loop) for loop in training_loops(flow)):
                return True
    return False


def _loaded(flow: Flow, model: Value, copy: Op) -> bool:
    """Weights of a file are alike on all ranks."""
    for op in flow.calls("load_state_dict"):
        if op.of is None or op.of.kind in ("optimizer", "scheduler", "scaler"):
            continue
        if op.of.base is copy.result.base or (op.index < copy.index and op.of.base is model.base):
            return True
    return False


@every_distributed_program("all_reduce")
def last_steps_not_averaged(flow: Flow) -> Iterator[Hit]:
    """Weights are averaged every so many steps, of which the steps are no multiple, and not at the end."""
    if averages(flow) or gradient_reductions(flow) or model_parallel(flow):
        return
    averaged = [op for op in flow.calls("all_reduce") if any(_is_weights(value) for value in op.args)]
    for loop in training_loops(flow):
        inside = [op for op in averaged if op.within(loop)]
        if not inside or len(inside) != len(averaged) or not all(_periodic(op, loop) for op in inside):
            continue
        steps, period = _length(flow, loop), _period(flow, inside[0])
        used = _used_after(flow, loop)
        if steps and period and steps % period and used is not None:
            yield hit(inside[0], used, steps=f"{steps:g}", period=f"{period:g}")


def _is_weights(value: Value) -> bool:
    return value.kind == "params" and not value.has("grad")


def _periodic(op: Op, loop: Loop) -> bool:
    return behind_modulo(op) and conditional(op, loop)


def _length(flow: Flow, loop: Loop) -> int:
    """How often it goes round, where it counts to a known number."""
    over = loop.through
    start, stop = over.attrs.get("start"), over.attrs.get("stop")
    first, last = settled(flow, start), settled(flow, stop)
    return int(last - first) if over.kind == "range" and first is not None and last is not None else 0


def _period(flow: Flow, op: Op) -> int:
    """n of `step % n == 0`, under which it is done; none where another rest is asked for."""
    for guard in op.guards:
        test = guard.node
        if not isinstance(test, ast.Compare) or not isinstance(test.left, ast.BinOp):
            continue
        if isinstance(test.left.op, ast.Mod) and text_of(test.comparators[0]) == "0":
            number = written(flow, test.left.right)
            return int(number) if number and len(op.guards) == 1 else 0
    return 0


def _used_after(flow: Flow, loop: Loop) -> Op | None:
    """The model is saved or judged when the loop has ended."""
    last = max((op.index for op in flow.ops if op.within(loop)), default=0)
    for op in flow.ops[last:]:
        if op.kind != "call" or any(one in op.loops for one in training_loops(flow)):
            continue
        if op.last in ("forward", "state_dict") and op.of is not None and op.of.kind == "model":
            return op
    return None


@every_program("DataLoader", "StatefulDataLoader")
def changed_behind_the_workers(flow: Flow) -> Iterator[Hit]:
    """Workers that live on read their own copy of the dataset: what is set in it later they never see."""
    for loader in flow.calls("DataLoader", "StatefulDataLoader"):
        stays = loader.argument("persistent_workers")
        dataset = loader.argument("dataset", 0)
        if stays is None or stays.const is not True or dataset is None or dataset.kind != "dataset":
            continue
        for op, name in _set(flow, dataset):
            if _between_passes(flow, op, loader) and _read_by_workers(dataset, name):
                yield hit(loader, op, name=name)
                break


def _set(flow: Flow, dataset: Value) -> Iterator[tuple[Op, str]]:
    """Attributes of it that are assigned, also by a method of its own."""
    for op in flow.of_kind("setattr"):
        if op.of is dataset:
            yield op, op.name
    setters = _setters(dataset.node)
    for call in flow.calls(*setters) if setters else ():
        if call.of is dataset:
            yield from ((call, name) for name in setters[call.last])


def _setters(node: ast.AST | None) -> dict[str, list[str]]:
    """Methods that set attributes, and which."""
    found: dict[str, list[str]] = {}
    for method in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(method, Function) and not method.name.startswith("__"):
            targets = [one for part in ast.walk(method) if isinstance(part, ast.Assign) for one in part.targets]
            own = [one.attr for one in targets if isinstance(one, ast.Attribute) and text_of(one.value) == "self"]
            found |= {method.name: own} if own else {}
    return found


def _between_passes(flow: Flow, op: Op, loader: Op) -> bool:
    """Set in a loop around the training, in which the loader is not made anew."""
    for loop in op.loops:
        if not loader.within(loop) and any(one.op.within(loop) and one.loop is not loop for one in backwards(flow)):
            return True
    return False


_SHARED = re.compile(r"\bValue\(|\bArray\(|share_memory|shared_memory|SharedMemory|Manager\(|RawValue")


def _read_by_workers(dataset: Value, name: str) -> bool:
    node = dataset.node
    if not isinstance(node, ast.ClassDef):
        return False
    methods = {one.name: one for one in node.body if isinstance(one, Function)}
    if _SHARED.search(text_of(node)):
        return False
    asked: list[str] = [one for one in ("__iter__", "__getitem__", "__getitems__") if one in methods]
    for one in asked:
        for part in ast.walk(methods[one]):
            called = part.attr if isinstance(part, ast.Attribute) and text_of(part.value) == "self" else ""
            if called in methods and called not in asked:
                asked.append(called)
            if called == name and isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Load):
                return True
    return False


_THREADS = ("Thread", "submit", "put", "put_nowait", "apply_async", "run_in_executor")
_COPIES = re.compile(r"clone|deepcopy|\.cpu\(|to\(['\"]cpu|device\(['\"]cpu|numpy\(|pin_memory|copy_\(|offload")


@every_program("state_dict")
def live_tensors_to_writer(flow: Flow) -> Iterator[Hit]:
    """A thread gets what state_dict() gave, which training goes on to change."""
    if flow.says("async_save"):
        return
    for op in flow.calls(*_THREADS):
        if not op.loops or not _writes(flow, op) or _COPIES.search(_around(op)):
            continue
        state = next((one for value in (*op.args, *op.keywords.values()) if (one := _live(value)) is not None), None)
        if state is not None and state.made is not None and not _waited(flow, op):
            yield hit(op, state.made)


_SAVES = re.compile(r"\bsave(?:_file|_pretrained)?\b|\bpickle\.dump\b")


def _writes(flow: Flow, op: Op) -> bool:
    """What is started writes files; of a queue, who takes from it."""
    if op.last.startswith("put"):
        functions = (one for module in flow.nodes for one in ast.walk(module.tree) if isinstance(one, Function))
        return any(_SAVES.search(text) and ".get(" in text for text in map(text_of, functions))
    given = op.argument("target") if op.last == "Thread" else op.argument("", int(op.last == "run_in_executor"))
    return given is not None and bool(_SAVES.search(text_of(given.node) if given.node is not None else given.name))


def _around(op: Op) -> str:
    for node in op.module.statements:
        if isinstance(node, Function) and node.lineno <= op.line <= (node.end_lineno or 0):
            inner = [one for one in node.body if isinstance(one, Function)]
            if not any(one.lineno <= op.line <= (one.end_lineno or 0) for one in inner):
                return text_of(node)
    return op.module.text


_LIVE = re.compile(r"\w+(?:\.detach\(\)|\.data)?")
"""Of what a state holds, the same memory."""


def _live(value: Value, depth: int = 0) -> Value | None:
    """The states of models and optimizers among what is handed over."""
    if value.kind == "state":
        of = value.attrs.get("of")
        return value if of is not None and of.kind in ("model", "optimizer") else None
    if depth < 5:
        inner = [*(value.items or ()), *(value.attrs.values() if value.kind == "dict" else ())]
        if isinstance(value.node, ast.DictComp) and _LIVE.fullmatch(text_of(value.node.value)):
            inner.append(value.attrs.get("each of", Value()))
        if value.kind == "iter" and "of" in value.attrs:
            inner.append(value.attrs["of"])
        for one in inner:
            found = _live(one, depth + 1)
            if found is not None:
                return found
    return None


def _waited(flow: Flow, op: Op) -> bool:
    """The thread has ended before training goes on."""
    return any(
        one.index > op.index and one.loops and one.loops[-1] is op.loops[-1] and set(one.guards) >= set(op.guards)
        for one in flow.calls("join", "result", "wait")
    )

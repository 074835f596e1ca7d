"""Programs that keep more memory than they need, or shard less than they seem to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from paramedic.detect.every import every_file, every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import backwards, hit, wrapped
from paramedic.detect.program import Function, Module, dotted, text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import UNPACKED, Op, Value
from paramedic.model import Event


@every_program("backward")
def graph_kept(flow: Flow) -> Iterator[Hit]:
    """A tensor with its graph, kept beyond the step that made it."""
    starts = [one.loss for one in backwards(flow)]
    trained = {id(start.root) for start in starts if start.root is not None}
    for op in flow.ops:
        if not op.loops or op.no_grad:
            continue
        if op.kind == "call" and op.last in ("append", "extend", "add") and op.name.startswith(".") and op.args:
            value, kept = op.args[0], op.of
            whole = value.items[0] if value.items else value
            if (
                kept is None
                or not _has_graph(whole, trained)
                or not _outlives(flow, op, kept)
                or _read_by(kept, starts)
            ):
                continue
            yield hit(op, what=text_of(op.node)[:80])
        elif (
            (op.kind == "augassign" and op.name == "Add" and op.of is not None and _has_graph(op.args[0], trained))
            and (op.target.isidentifier() or op.target.startswith("self."))
            and (
                _made_outside(flow, op)
                and not _leads_to(op.result, starts)
                and not _restarted(flow, op)
                and op.of.items is None
            )
        ):
            found = hit(op, what=op.target)
            yield replace(found, severity="info") if _begun_anew(op) else found


def _begun_anew(op: Op) -> bool:
    """In each round of a loop around it: little is kept of steps that went backward, and it goes with the round."""
    return any(
        isinstance(node, ast.Assign) and any(text_of(target) == op.target for target in node.targets)
        for loop in op.loops[:-1]
        for node in getattr(loop.node, "body", ())
    )


def _has_graph(value: Value, trained: set[int]) -> bool:
    """For sure: what the model that is trained gave, or a loss of it; not one of several things that a loss gives."""
    made = value.made
    if value.name == UNPACKED and (made is None or any(one.has("output") for one in made.args)):
        return False
    return (
        id(value.root) in trained
        and value.has("graph")
        and value.kind != "model"
        and not value.known
        and value.name[:1] != "."
    )


def _outlives(flow: Flow, op: Op, kept: Value) -> bool:
    """The list was there before the loop, and is not emptied within it."""
    loop = op.loops[-1]
    inner = list(ast.walk(loop.node))
    func = getattr(op.node, "func", None)
    name = text_of(func.value) if isinstance(func, ast.Attribute) else ""
    for node in inner:
        if isinstance(node, ast.Assign) and any(text_of(target) == name for target in node.targets):
            return False
        if isinstance(node, ast.AnnAssign) and text_of(node.target) == name:
            return False
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("clear", "pop", "popleft")
        ) and text_of(node.func.value) == name:
            return False
    last = re.escape(name.rsplit(".", 1)[-1])
    if "." in name and re.search(
        rf"del [\w.]*\b{last}\[:\]|\b{last}\.(?:clear|pop)\(|\.{last} = \[\]", _outside_init(op.module)
    ):
        return False
    made = kept.made
    return (
        not (made is not None and made.last == "deque")
        and not _gone_back_through(op.module, name)
        and bool(re.fullmatch(r"[\w.\[\]'\"]+", name))
        and not isinstance(loop.node, ast.ListComp | ast.GeneratorExp)
    )


def _gone_back_through(module: Module, name: str) -> bool:
    """A pipeline's stage keeps what it sent until its gradient comes: another loop goes back through each of them."""
    return any(
        isinstance(node, ast.For)
        and re.search(rf"(?<![\w.]){re.escape(name)}\b", text_of(node.iter))
        and any(isinstance(one, ast.Attribute) and one.attr == "backward" for one in ast.walk(node))
        for node in ast.walk(module.tree)
    )


def _outside_init(module: Module) -> str:
    return re.sub(r"def __init__\(.*?(?=\n    def |\nclass |\Z)", "", module.text, flags=re.S)


def _read_by(kept: Value, starts: list[Value]) -> bool:
    """The kept ones are what backward starts from."""
    return any(_leads_to(kept, [start]) for start in starts)


def _leads_to(value: Value, starts: list[Value]) -> bool:
    return any(start is value or _derived(start, value, 0) for start in starts)


def _derived(value: Value, source: Value, depth: int) -> bool:
    if value is source:
        return True
    if depth > 6:
        return False
    below = [one for key, one in value.attrs.items() if key in ("left", "right", "of", "sliced")]
    made = value.made
    if made is not None and made.result is value:
        below += [*made.args, *made.keywords.values()]
        if made.of is not None and made.name.startswith("."):
            below.append(made.of)
    below += value.items or []
    return any(_derived(one, source, depth + 1) for one in below)


def _made_outside(flow: Flow, op: Op) -> bool:
    loop = op.loops[-1]
    for node in ast.walk(loop.node):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [
                text_of(one)
                for target in targets
                for one in ast.walk(target)
                if isinstance(one, ast.Name | ast.Attribute)
            ]
            if op.target in names:
                return False
    return True


def _restarted(flow: Flow, op: Op) -> bool:
    """Something else is done with it: `total.backward()` elsewhere, or `total = total.item()`."""
    text = op.module.text
    name = re.escape(op.target)
    return bool(
        re.search(
            rf"{name}\.backward\(|backward\({name}\)|{name}\s*=\s*{name}\.(?:item|detach)|scale\({name}\)|grad\({name}|step\(\s*{name}|return\s+{name}\b",
            text,
        )
    )


@every_file(".append(")
def kept_on_the_module(flow: Flow, module: Module) -> Iterator[Hit]:
    """`self.seen.append(x)` in forward, a step or a hook, and nothing that empties it."""
    for cls in module.classes.values():
        if flow.program.bases(module, cls) & {"Module", "LightningModule"}:
            yield from _kept(module, cls)


def _kept(module: Module, cls: ast.ClassDef) -> Iterator[Hit]:
    for method in cls.body:
        if not isinstance(method, Function) or method.name not in (
            "forward",
            "training_step",
            "_step",
            "step",
            "shared_step",
        ):
            continue
        local = {arg.arg for arg in method.args.args} - {"self", "batch_idx", "idx"}
        for node in ast.walk(method):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "append":
                continue
            name = text_of(node.func.value)
            if not name.startswith("self.") or not node.args:
                continue
            whole = method.name == "training_step" and _is_whole_batch(node.args[0], method, local)
            whole = whole and not re.search(rf"(?<!self)\.{name[5:]}\b", module.text)
            if not whole and not _is_kept_graph(node.args[0], method, local):
                continue
            if _emptied(cls, name, module):
                continue
            line = module.lines[node.lineno - 1].strip()[:200]
            yield Hit((Event(module.source, node.lineno, "code", line, node.lineno),), {"name": name})


def _is_kept_graph(node: ast.expr, method: Function, local: set[str]) -> bool:
    value = text_of(node)
    if re.search(r"detach|item\(|\.cpu\(\)\.numpy|float\(|\.data\b|shape|len\(|no_grad", value):
        return False
    return bool(re.search(r"[a-z]", value)) and _is_tensor(node, method, local) and not _under_no_grad(method)


_STILL_WHOLE = frozenset(("detach", "cpu", "clone", "to", "float", "half", "contiguous", "flatten"))


def _is_whole_batch(node: ast.expr, method: Function, local: set[str]) -> bool:
    """The batch or what a layer made of it, with or without its graph: not a mean of it."""
    if isinstance(node, ast.Dict | ast.Tuple | ast.List):
        held = node.values if isinstance(node, ast.Dict) else node.elts
        return any(_is_whole_batch(one, method, local) for one in held)
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _STILL_WHOLE:
        node = node.func.value
    if isinstance(node, ast.Call):
        return _is_layer_call(node)
    if not isinstance(node, ast.Name):
        return False
    made = [part.value for part in ast.walk(method) if isinstance(part, ast.Assign) and _sets(part, node.id)]
    if not made:
        return node.id in local
    return all(_is_layer_call(one) if isinstance(one, ast.Call) else dotted(one) in local for one in made)


def _is_layer_call(node: ast.Call) -> bool:
    """`self(x)` or `self.net(x)`; metrics take more."""
    name = text_of(node.func)
    layer = len(node.args) == 1 and re.fullmatch(r"self\.(?!\w*(?:loss|crit|metric|acc|log|step|norm))\w+", name)
    return name in ("self", "self.forward") or bool(layer)


def _sets(node: ast.Assign, name: str) -> bool:
    return any(text_of(one) == name for target in node.targets for one in ast.walk(target))


def _emptied(cls: ast.ClassDef, name: str, module: Module) -> bool:
    """In another method, or from outside."""
    for method in cls.body:
        if not isinstance(method, Function) or method.name == "__init__":
            continue
        for node in ast.walk(method):
            if isinstance(node, ast.Assign) and _sets(node, name):
                return True
            if isinstance(node, ast.AnnAssign) and text_of(node.target) == name:
                return True
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("clear", "pop", "popleft")
            ) and text_of(node.func.value) == name:
                return True
            if isinstance(node, ast.Delete) and any(text_of(target).startswith(name) for target in node.targets):
                return True
    last = name.removeprefix("self.")
    if re.search(rf"\blen\({re.escape(name)}\)\s*[<>]", text_of(cls)):
        return True
    return bool(re.search(rf"\.{re.escape(last)}\.(?:clear|pop)\(|(?<!self)\.{re.escape(last)}\s*=|deque", module.text))


def _is_tensor(node: ast.expr, method: Function, local: set[str]) -> bool:
    """An argument of the step, or something computed from a call."""
    if isinstance(node, ast.Call):
        return True
    if isinstance(node, ast.Name):
        if node.id in local:
            return True
        for part in ast.walk(method):
            if isinstance(part, ast.Assign) and any(text_of(target) == node.id for target in part.targets):
                if isinstance(part.value, ast.Call | ast.BinOp) and not re.search(
                    r"\.(?:item|detach|tolist|numpy)\(", text_of(part.value)
                ):
                    return True
    return False


def _under_no_grad(method: Function) -> bool:
    return any("no_grad" in text_of(decorator) for decorator in method.decorator_list)


@every_program("FullyShardedDataParallel", "FSDP", "fully_shard")
def one_unit(flow: Flow) -> Iterator[Hit]:
    """FSDP around the whole model alone: all parameters are gathered at once."""
    for op in wrapped(flow, "fsdp"):
        if op.last not in ("FullyShardedDataParallel", "FSDP") or {"auto_wrap_policy", "**"} & op.keywords.keys():
            continue
        others = [one for one in wrapped(flow, "fsdp") if one is not op]
        if not others and not op.loops and not flow.mentions(r"auto_wrap|\bwrap\(|enable_wrap|policy|partial\("):
            yield hit(op, name="FSDP")
    shards = [op for op in flow.calls("fully_shard") if "torch" in op.name]
    if len(shards) == 1 and not shards[0].loops and _is_whole(shards[0]):
        yield hit(shards[0], name="fully_shard")


def _is_whole(op: Op) -> bool:
    model = op.argument("module", 0)
    return model is not None and "parent" not in model.attrs


@every_program("FullyShardedDataParallel", "init_device_mesh")
def not_sharded(flow: Flow) -> Iterator[Hit]:
    """A strategy or a mesh that keeps a whole copy on every rank."""
    for op in flow.calls("FullyShardedDataParallel"):
        given = op.argument("sharding_strategy")
        if given is not None and given.name.endswith("NO_SHARD"):
            yield hit(op, what="NO_SHARD")
    for op in flow.calls("init_device_mesh"):
        shape = op.argument("mesh_shape", 1)
        items = shape.items if shape is not None and shape.items is not None else []
        if (
            len(items) == 2
            and items[1].number() == 1
            and items[0].has("world")
            and flow.has("fully_shard", "FullyShardedDataParallel")
            and not flow.has("parallelize_module")
        ):
            yield hit(op, what="a mesh whose shards have one rank")


@every_file("checkpoint_wrapper", "FSDP", "FullySharded", "wrap(", "offload_wrapper")
def loop_variable_replaced(flow: Flow, module: Module) -> Iterator[Hit]:
    """`for layer in model.layers: layer = wrapper(layer)` changes nothing in the model."""
    for node in module.statements:
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name | ast.Tuple):
            yield from _replaced(module, node)
        elif (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and text_of(node.value.func).rsplit(".", 1)[-1] == "checkpoint_wrapper"
        ):
            yield _at(module, node, "checkpoint_wrapper", "")


_WRAPS = frozenset(("checkpoint_wrapper", "FSDP", "FullyShardedDataParallel", "wrap", "offload_wrapper"))


def _replaced(module: Module, loop: ast.For) -> Iterator[Hit]:
    names = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
    for node in loop.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call) or len(node.targets) != 1:
            continue
        target, called = node.targets[0], text_of(node.value.func).rsplit(".", 1)[-1]
        if not isinstance(target, ast.Name) or target.id not in names or called not in _WRAPS:
            continue
        used = [
            part
            for other in loop.body
            if other is not node
            for part in ast.walk(other)
            if isinstance(part, ast.Name) and part.id == target.id
        ]
        if not used:
            yield _at(module, node, called, target.id)


def _at(module: Module, node: ast.stmt, name: str, target: str) -> Hit:
    line = module.lines[node.lineno - 1].strip()[:200]
    return Hit(
        (Event(module.source, node.lineno, "code", line, node.lineno),),
        {"name": name, "target": target or "the result"},
    )


@every_program("backward")
def graph_retained(flow: Flow) -> Iterator[Hit]:
    all_of = backwards(flow)
    for one in all_of:
        kept = one.op.keywords.get("retain_graph")
        if kept is not None and kept.const is True and one.op.loops:
            if sum(other.loop is one.loop for other in all_of) == 1:
                yield hit(one.op)


_RECOMPUTES = re.compile(r"(?i)checkpointing|(?:use|grad|act|activation)\w*_checkpoint|recomput|remat|^checkpoint$")


@every_program("DistributedDataParallel", "FullyShardedDataParallel")
def set_on_the_wrapper(flow: Flow) -> Iterator[Hit]:
    """The wrapper keeps the attribute to itself; the module inside reads its own."""
    given = [(op, op.name, op.of, op.args[0]) for op in flow.of_kind("setattr")]
    given += [
        (op, str(op.args[1].const), op.args[0], op.args[2])
        for op in flow.calls("setattr")
        if len(op.args) == 3 and isinstance(op.args[1].const, str)
    ]
    for op, name, of, value in given:
        if of is None or of.kind != "model" or of.wrap not in ("ddp", "fsdp") or not _RECOMPUTES.search(name):
            continue
        inner = [one for one, same, model, _ in given if same == name and model is not None and not model.wrap]
        later = [one for one in inner if one.index > op.index and one.of is not None and one.of.base is of.base]
        if value.const is not False and not later and _is_own(flow, of, name):
            yield hit(op, name=name, wrapper="DDP" if of.wrap == "ddp" else "FSDP")


def _is_own(flow: Flow, model: Value, name: str) -> bool:
    """The class of the module sets it, and reads it elsewhere."""
    node, module = model.node, model.module
    for _ in range(6):
        if not isinstance(node, ast.ClassDef) or module is None:
            return False
        text = text_of(node)
        own = re.search(rf"^    {name}\b.*=|\bself\.{name}\s*(?::[^=\n]*)?=(?!=)", text, re.M)
        if own and re.search(rf"\bself\.{name}\b(?!\s*(?::[^=\n]*)?=(?!=))", text):
            return True
        above = next((one for base in node.bases if (one := flow.program.class_of(dotted(base), module))), None)
        if above is None:
            return False
        module, node = above
    return False

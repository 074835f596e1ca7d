"""What a program builds again too often, keeps whole beside its shards, or takes up wrongly when it goes on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.every import every_distributed_program, every_file, every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import at, backwards, conditional, event_of, function_around, hit, training_loops
from paramedic.detect.program import Function, Module, dotted, text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op, Value


@every_distributed_program("new_group", "new_subgroups", "init_device_mesh")
def group_in_every_step(flow: Flow) -> Iterator[Hit]:
    """Each group has threads, connections and buffers of its own."""
    for op in flow.calls("new_group", "new_subgroups", "init_device_mesh"):
        inside = [loop for loop in training_loops(flow) if op.within(loop)]
        if not inside or conditional(op, inside[0]):
            continue
        if any(one.within(inside[0]) for one in flow.calls("destroy_process_group")):
            continue
        yield hit(op, name=op.last)


_FRESH = re.compile(r"(?i)step|epoch|iter|resum|start|ckpt|checkpoint|load|fresh|restor|exist|state|first|begin")


@every_distributed_program("load_state_dict")
def rate_scaled_on_resume(flow: Flow) -> Iterator[Hit]:
    """The restored optimizer holds the scaled rate already."""
    trained = backwards(flow)
    restored = [
        op
        for op in flow.calls("load_state_dict")
        if op.of is not None and op.of.kind == "optimizer" and (not trained or op.index < trained[0].op.index)
    ]
    if not restored:
        return
    for op in flow.ops[restored[0].index :]:
        if trained and op.index > trained[0].op.index:
            break
        if not _multiplies_rate(op) or any(
            guard.node is not None and _FRESH.search(text_of(guard.node))
            for guard in op.guards
            if guard not in restored[-1].guards
        ):
            continue
        if not any(loop in restored[-1].loops for loop in op.loops):
            yield hit(op, restored[-1])


def _multiplies_rate(op: Op) -> bool:
    if not re.search(r"\[['\"]lr['\"]\]$", op.target):
        return False
    if op.kind == "augassign":
        return op.name == "Mult" and bool(op.args) and op.args[0].has("world")
    if op.kind == "setitem" and isinstance(op.node, ast.Assign) and isinstance(op.node.value, ast.BinOp):
        value = op.node.value
        return (
            isinstance(value.op, ast.Mult)
            and op.target in (text_of(value.left), text_of(value.right))
            and op.args[-1].has("world")
        )
    return False


@every_file("glob(", "listdir(", "iterdir(")
def latest_by_name(flow: Flow, module: Module) -> Iterator[Hit]:
    """As text, step_900 comes after step_1200."""
    prefixes = _unpadded(flow) if flow.has("load") else set()
    if not prefixes:
        return
    helpers = _lists_in_order(module)
    yield from _last_of(module, module.tree, prefixes, helpers)
    for function in module.statements:
        if isinstance(function, Function):
            yield from _last_of(module, function, prefixes, helpers)


def _lists_in_order(module: Module) -> dict[str, str]:
    """Functions and methods that give a sorted list of files, by name: what they give."""
    found = {}
    for function in module.statements:
        given = [part for part in ast.walk(function) if isinstance(part, ast.Return)] if _is_function(function) else []
        text = text_of(given[0].value) if len(given) == 1 else ""
        if text.startswith("sorted(") and re.search(r"glob\(|listdir\(|iterdir\(", text) and "key=" not in text:
            found[getattr(function, "name", "")] = text
    return found


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, Function)


def _unpadded(flow: Flow) -> set[str]:
    """The texts before a count that is written into a file's name without leading noughts."""
    found = set()
    for module in flow.nodes:
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.JoinedStr):
                continue
            for text, number in zip(node.values, node.values[1:], strict=False):
                if (
                    isinstance(text, ast.Constant)
                    and isinstance(number, ast.FormattedValue)
                    and number.format_spec is None
                    and re.search(r"(?i)(?:step|epoch|iter\w*|\bit|\bi|\bn)$", text_of(number.value))
                    and re.search(r"[A-Za-z][\w.]*[-_=]?$", str(text.value))
                    and isinstance(node.values[-1], ast.Constant)
                    and re.match(r"\.(?:pt|pth|ckpt|bin|tar)", str(node.values[-1].value))
                ):
                    found.add(re.split(r"[/\\]", str(text.value))[-1])
    return found


def _last_of(module: Module, function: ast.AST, prefixes: set[str], helpers: dict[str, str]) -> Iterator[Hit]:
    listed: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = _given_by(node.value, helpers)
            if re.search(r"glob\(|listdir\(|iterdir\(", text) and "key=" not in text:
                listed[node.targets[0].id] = text
    sorts = {
        text_of(node.func.value)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sort"
        and not node.keywords
    }  # fmt: skip
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and dotted(node.func) == "max" and len(node.args) == 1 and not _keyed(node):
            given = text_of(node.args[0])
        elif (
            isinstance(node, ast.Subscript)
            and text_of(node.slice) == "-1"
            and isinstance(node.value, ast.Call)
            and dotted(node.value.func) == "sorted"
            and not any(keyword.arg == "key" for keyword in node.value.keywords)
        ):
            given = text_of(node.value.args[0]) if node.value.args else ""
        elif isinstance(node, ast.Subscript) and text_of(node.slice) == "-1" and isinstance(node.value, ast.Call):
            given = _given_by(node.value, helpers)
            given = given if given.startswith("sorted(") and "key=" not in given else ""
        elif isinstance(node, ast.Subscript) and text_of(node.slice) == "-1" and isinstance(node.value, ast.Name):
            held = listed.get(node.value.id, "")
            given = held if held.startswith("sorted(") or node.value.id in sorts else ""
        else:
            continue
        text = listed.get(given, given)
        if not re.search(r"glob\(|listdir\(|iterdir\(", text):
            continue
        pattern = re.search(r"glob\([^'\"]*['\"]([^'\"]*)['\"]", text)
        known = pattern is None and re.search(r"(?i)ckpt|checkpoint|snapshot|save|weight", text)
        if known or (pattern is not None and any(_fits(prefix, pattern[1]) for prefix in prefixes)):
            yield at(module, node)


def _given_by(node: ast.expr, helpers: dict[str, str]) -> str:
    """The expression, or what the function gives that it calls."""
    called = dotted(node.func).rsplit(".", 1)[-1] if isinstance(node, ast.Call) else ""
    return helpers.get(called) or text_of(node)


def _keyed(node: ast.Call) -> bool:
    return any(keyword.arg == "key" for keyword in node.keywords) or "int(" in text_of(node)


def _fits(prefix: str, pattern: str) -> bool:
    before = re.split(r"[/\\]", pattern)[-1].split("*")[0]
    return prefix.startswith(before) or before.startswith(prefix)


@every_program("deepcopy", "AveragedModel", "clone")
def average_of_fresh_weights(flow: Flow) -> Iterator[Hit]:
    """The average copies the weights before those of the checkpoint are read, and is not restored itself."""
    trained = backwards(flow)
    copies = [op for op in flow.calls("deepcopy", "AveragedModel") if op.args and op.args[0].kind == "model"]
    copies += [op for op in flow.calls("clone") if _of_all_weights(op)]
    if not trained or not copies or not _averages(flow):
        return
    restored = [op for op in flow.calls("load_state_dict") if op.index < trained[0].op.index]
    for copy in copies:
        later = [op for op in restored if op.index > copy.index]
        if not later or any(_could_be(op, copy.result) for op in restored):
            continue
        if flow.mentions(r"(?i)(?:ema|shadow|average\w*|swa\w*|teacher)\w*(?:\.\w+)*\.load_state_dict"):
            continue
        if flow.mentions(
            r"['\"](?:\w*_)?(?:ema|shadow|averaged?|swa|teacher|slow)(?:_(?:state|model|dict|weights|state_dict|params))?['\"]"
        ):
            continue
        if any(one.index > later[-1].index and one.index < trained[0].op.index for one in copies):
            continue
        root = copy.args[0].base if copy.args else copy.of.root if copy.of is not None else None
        if any(op.of is not None and (op.of.base is root or op.of.kind in ("", "model")) for op in later):
            yield hit(copy, later[0])


def _of_all_weights(op: Op) -> bool:
    """`{name: p.detach().clone() for name, p in model.named_parameters()}`."""
    loop = op.loops[-1].node if op.loops else None
    return (
        isinstance(loop, ast.DictComp | ast.ListComp)
        and op.of is not None
        and op.of.kind == "params"
        and not op.of.has("grad")
        and op.of.root is not None
    )


def _averages(flow: Flow) -> bool:
    return flow.has("lerp_", "update_parameters", "_foreach_lerp_") or flow.mentions(
        r"(?i)decay\s*\*.*\+|mul_\(\w*\.?\w*decay\w*\)"
    )


def _could_be(op: Op, copy: Value) -> bool:
    return op.of is not None and op.of.base is copy.base


@every_program("deepcopy", "AveragedModel")
def average_without_buffers(flow: Flow) -> Iterator[Hit]:
    """The average takes up parameters alone: its batch norms keep the statistics that they began with."""
    if flow.mentions(r"update_bn|use_buffers|buffers\(|running_(?:mean|var)|track_running_stats=False"):
        return
    loops = training_loops(flow)
    for copy in flow.calls("deepcopy", "AveragedModel"):
        model = copy.args[0] if copy.args else None
        if model is None or model.kind != "model" or not _has_batch_norm(model):
            continue
        average = copy.result.base
        updates = [op for op in flow.calls(*_UPDATES) if any(op.within(one) for one in loops) and _of(op, average)]
        judged = [op for op in flow.calls("eval") if op.of is not None and op.of.base is average]
        if not updates or not judged or any("state_dict" in text_of(function_around(op)) for op in updates):
            continue
        yield hit(updates[0], copy)


_UPDATES = ("lerp_", "mul_", "copy_", "update_parameters", "lerp")


def _of(op: Op, average: Value) -> bool:
    """It changes that model's parameters."""
    return op.of is not None and (
        (op.of.kind == "params" and op.of.root is average) or (op.last == "update_parameters" and op.of.base is average)
    )


def _has_batch_norm(model: Value) -> bool:
    tags = model.tags | model.base.tags
    return any(tag.startswith(("part:BatchNorm", "part:SyncBatchNorm")) for tag in tags)


@every_distributed_program("fully_shard", "FullyShardedDataParallel")
def whole_average_beside_shards(flow: Flow) -> Iterator[Hit]:
    """A full copy of every parameter on every rank, kept for the whole run."""
    shards = list(flow.calls("fully_shard", "FullyShardedDataParallel"))
    if not shards:
        return
    for module in flow.nodes:
        for cls in module.classes.values():
            for hit_ in _whole(module, cls):
                yield Hit((*hit_.quoted, event_of(shards[-1])))
    for copy in flow.calls("deepcopy", "AveragedModel"):
        if not copy.args or copy.args[0].kind != "model" or not _averages(flow):
            continue
        root = copy.args[0].base
        after = [op for op in shards if op.index > copy.index and op.args and op.args[0].base is root]
        own = [op for op in shards if op.args and op.args[0].base is copy.result.base]
        if after and not own and not flow.mentions(r"(?i)(?:fully_shard|FSDP|shard)\w*\(\s*(?:self\.)?\w*ema"):
            yield hit(copy, after[-1])


def _whole(module: Module, cls: ast.ClassDef) -> Iterator[Hit]:
    kept = {}
    gathers = _gathers(module, cls)
    for node in ast.walk(cls):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Attribute)
            and isinstance(node.value, ast.DictComp | ast.ListComp)
            and gathers.search(text_of(node.value))
            and not re.search(r"\bcpu\b", text_of(node.value))
        ):
            kept[text_of(node.targets[0])] = node
    text = text_of(cls)
    for name, node in kept.items():
        if re.search(rf"{re.escape(name)}\b.*(?:lerp_|mul_|add_|copy_)", text) or re.search(
            rf"in (?:zip\()?{re.escape(name)}", text
        ):
            yield at(module, node)


def _gathers(module: Module, cls: ast.ClassDef) -> re.Pattern[str]:
    """`full_tensor()`, or a helper that does little else and leaves it where it is."""
    helpers = [one for one in (*module.functions.values(), *cls.body) if isinstance(one, Function)]
    names = [
        re.escape(one.name)
        for one in helpers
        if re.search(r"return .*\.full_tensor\(\)", text := text_of(one)) and not re.search(r"\bcpu\b", text)
    ]
    return re.compile("|".join([r"\.full_tensor\(\)", *(rf"\b{name}\(" for name in names)]))


_HOOKS = (
    "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "register_backward_hook",
    "register_full_backward_pre_hook",
)  # fmt: skip


@every_program(*_HOOKS)
def hooks_pile_up(flow: Flow) -> Iterator[Hit]:
    """Hooks of a model that lives on, registered again in every epoch or step."""
    if flow.mentions(r"\.remove\(\)"):
        return
    rounds = {id(loop.node) for one in backwards(flow) for loop in one.op.loops}
    for op in flow.calls(*_HOOKS):
        inside = [loop for loop in op.loops if id(loop.node) in rounds]
        if not inside or any(guard.depth > 0 for guard in op.guards):
            continue
        made = op.of.base.made if op.of is not None else None
        if made is None or not made.within(inside[0]):
            yield hit(op, name=op.last)


@every_program("ScheduleGPipe", "Schedule1F1B")
def one_micro_batch(flow: Flow) -> Iterator[Hit]:
    """With a single micro-batch only one stage works at a time."""
    for op in flow.calls("ScheduleGPipe", "Schedule1F1B"):
        count = op.argument("n_microbatches", 1)
        stages = [one.argument("num_stages", 2) for one in flow.calls("PipelineStage")]
        if count is None or count.number() != 1 or not op.name.startswith("torch"):
            continue
        if _trains(op) and not any(one is not None and one.number() == 1 for one in stages):
            yield hit(op)


def _trains(op: Op) -> bool:
    """It trains: a schedule without a loss only computes."""
    loss = op.argument("loss_fn", 2)
    return loss is not None and loss.const is not None

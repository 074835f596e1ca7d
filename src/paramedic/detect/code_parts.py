"""Programs in which a rank takes the part that it has for the whole, or the whole for its part."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.every import every_distributed_program, every_file
from paramedic.detect.flow import Flow
from paramedic.detect.loops import (
    at,
    averages,
    backwards,
    event_of,
    forwards,
    gradient_reductions,
    hit,
    model_parallel,
    steps,
    training_loops,
    wrapped,
)
from paramedic.detect.program import Function, Module, dotted, text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op, Value

_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")
_OWN_WAY = re.compile(r"(?i)opacus|differential|privacy|\bdp_?sgd|federat|byzantine|noise_multiplier|per_worker_clip")


@every_distributed_program(*_CLIPS)
def clipped_before_averaged(flow: Flow) -> Iterator[Hit]:
    """Each rank shortens its own gradient; what is then averaged is not the clipped mean."""
    reduced = [op for op in gradient_reductions(flow) if op.last in ("all_reduce", "allreduce", "allreduce_")]
    if not reduced or averages(flow) or model_parallel(flow) or flow.mentions(_OWN_WAY.pattern):
        return
    for loop in training_loops(flow):
        back = [one.op.index for one in backwards(flow) if one.op.within(loop)]
        clips = [op for op in flow.calls(*_CLIPS) if op.within(loop)]
        sums = [op for op in reduced if op.within(loop)]
        stepped = [op for op in steps(flow) if op.within(loop) and sums and op.index > sums[-1].index]
        if not back or not clips or not sums or not stepped:
            continue
        if back[-1] < clips[-1].index < sums[0].index and _same_place(clips[-1], sums[0]):
            yield hit(clips[-1], sums[0])


def _same_place(one: Op, other: Op) -> bool:
    """No condition lets one happen without the other."""
    return {guard.node for guard in one.guards} == {guard.node for guard in other.guards}


_SQUARES = re.compile(r"\.norm\(|vector_norm\(|\.pow\(2|\*\* ?2|\.square\(|_foreach_norm|get_total_norm")
_SCALES = re.compile(r"\.mul_\(|_foreach_mul_|\*= |\.div_\(|/= |clip_grads_with_norm_")
_MEETS = re.compile(r"reduce|gather|full_tensor|DTensor\.from_local|from_local|redistribute")
_LIMITED = re.compile(r"(?i)max_?norm|clip|clamp|min\(|max_grad|limit")


@every_file("to_local", "_local_tensor", "FullyShardedDataParallel")
def norm_of_own_shards(flow: Flow, module: Module) -> Iterator[Hit]:
    """A clipping written by hand: the norm is that of the shards of this rank, and so is the factor."""
    flat = bool(wrapped(flow, "fsdp")) and not flow.mentions(r"NO_SHARD")
    sharded = flat or flow.has("fully_shard", "distribute_tensor")
    if not sharded or not backwards(flow):
        return
    for function in module.statements:
        if not isinstance(function, Function):
            continue
        text = text_of(function)
        if ".grad" not in text or ".backward(" in text or _MEETS.search(text):
            continue
        local = re.search(r"\.to_local\(|\._local_tensor\b", text) or (flat and "summon_full_params" not in text)
        if local and _SQUARES.search(text) and _SCALES.search(text) and _LIMITED.search(text):
            called = re.compile(rf"\b{re.escape(function.name)}\(")
            if any(called.search(one.text.replace(f"def {function.name}(", "")) for one in flow.nodes):
                yield at(module, _first(function, _SQUARES), name=function.name)


def _first(function: Function, pattern: re.Pattern[str]) -> ast.AST:
    """The first statement of it in which that stands."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Return | ast.Expr) and pattern.search(text_of(node)):
            return node
    return function


# -- how long and how many -----------------------------------------------------------------------------------------


@every_distributed_program("DistributedSampler")
def schedule_of_all_data(flow: Flow) -> Iterator[Hit]:
    """As many steps are planned as one rank would make alone; each makes its share of them."""
    dealt = []
    for loader in (op.result for op in flow.calls("DataLoader")):
        sampler, made = loader.attrs.get("sampler"), loader.made
        if sampler is not None and sampler.made is not None and sampler.name == "DistributedSampler" and made:
            dealt.append((sampler.made.argument("dataset", 0), made.argument("batch_size", 1)))
    for op in flow.ops:
        if op.kind != "call" or op.result.kind != "scheduler" or not _by_batch(flow, op.result):
            continue
        for given in (*op.args, *op.keywords.values()):
            for dataset, batch in dealt:
                if dataset is not None and batch is not None and _whole_length(given, dataset, batch):
                    yield hit(op)
                    break


def _by_batch(flow: Flow, schedule: Value) -> bool:
    """It goes on with every batch."""
    return any(
        op.of is schedule and any(op.loops and op.loops[-1] is loop for loop in training_loops(flow))
        for op in flow.calls("step")
    )


def _whole_length(value: Value, dataset: Value, batch: Value) -> bool:
    """`epochs * (len(dataset) // batch)`, and nothing in it knows of the ranks."""
    found = False
    for one in _leaves(value):
        if one.has("world", "/world"):
            return False
        mark = one.attrs.get("op")
        if mark is None or mark.name not in ("Div", "FloorDiv"):
            continue
        counted, by = one.attrs["left"], one.attrs["right"]
        of = counted.attrs.get("of")
        same = by is batch or (by.known and batch.known and by.const == batch.const)
        same = same or (not by.known and by.name.startswith((".", "[")) and by.name == batch.name)
        if counted.has("len") and of is dataset and same:
            found = True
    return found


def _leaves(value: Value, depth: int = 0) -> Iterator[Value]:
    """The value, and what it is computed from."""
    yield value
    if depth > 8:
        return
    inner = [value.attrs[side] for side in ("left", "right") if side in value.attrs]
    if not inner and value.made is not None and value.made.last in ("ceil", "int", "floor", "max", "round"):
        inner = list(value.made.args)
    for one in inner:
        yield from _leaves(one, depth + 1)


# -- which sample is whose -----------------------------------------------------------------------------------------


@every_file("all_gather")
def labels_of_first_rank(flow: Flow, module: Module) -> Iterator[Hit]:
    """Own rows against the rows of all ranks: the match of row i is row i only on the first rank."""
    for function in module.statements:
        if not isinstance(function, Function):
            continue
        labels = {
            name: node
            for name, node in _assigned(function)
            if isinstance(node, ast.Call)
            and (
                re.match(r"torch\.arange\([^,]*\)(?:\.(?:to|long|cuda)\(.*\))?$", text_of(node))
                or re.match(r"torch\.arange\([^,]*, (?:device|dtype)=.*\)$", text_of(node))
            )
        }
        gathered = _gathered(function, module) if labels else set()
        if not gathered:
            continue
        unlike = {name for name, node in _assigned(function) if _own_by_all(node, gathered)}
        changed = {text_of(node.target) for node in ast.walk(function) if isinstance(node, ast.AugAssign)}
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or len(node.args) < 2:
                continue
            if not re.search(r"cross_entropy$|(?i:criterion|loss_fn|ce)$|CrossEntropyLoss\(\)$", text_of(node.func)):
                continue
            logits, label = node.args[0], text_of(node.args[1])
            given = text_of(logits) in unlike or _own_by_all(logits, gathered)
            if given and label in labels and label not in changed and _once_set(function, label):
                if not re.search(r"rank|offset|world|\bcat\(|all_gather", text_of(labels[label])):
                    yield at(module, labels[label], name=label)
                    break


def _assigned(function: Function) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name):
                yield target.id, node.value
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for one, value in zip(target.elts, node.value.elts, strict=False):
                    if isinstance(one, ast.Name):
                        yield one.id, value


def _once_set(function: Function, name: str) -> bool:
    return sum(one == name for one, _ in _assigned(function)) == 1


def _gathered(function: Function, module: Module) -> set[str]:
    """Names of what all ranks have given, one behind the other and the first rank's first."""
    lists = {
        text_of(node.args[0])
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and dotted(node.func).endswith("all_gather") and len(node.args) > 1
    }
    helpers = {
        name
        for name, one in module.functions.items()
        if one is not function and "all_gather" in text_of(one) and re.search(r"return torch\.cat\(", text_of(one))
    }
    found = set()
    for name, value in _assigned(function):
        if not isinstance(value, ast.Call):
            continue
        called = dotted(value.func)
        first = value.args[0] if value.args else None
        direct = isinstance(first, ast.Call) and dotted(first.func).rsplit(".", 1)[-1] == "all_gather"
        if (called in ("torch.cat", "torch.concat") and (direct or text_of(first) in lists)) or called in helpers:
            found.add(name)
    return found


def _own_by_all(node: ast.AST, gathered: set[str]) -> bool:
    """`own @ all.T`, also scaled."""
    for part in ast.walk(node):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.MatMult):
            left, right = part.left, part.right
        elif isinstance(part, ast.Call) and dotted(part.func) in ("torch.matmul", "torch.mm") and len(part.args) == 2:
            left, right = part.args
        else:
            continue
        if _names(right) & gathered and not _names(left) & gathered:
            return True
    return False


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


@every_distributed_program("roll")
def rolled_within_piece(flow: Flow) -> Iterator[Hit]:
    """The next token of a piece's last one is in the next rank's piece, and not at the beginning of its own."""
    for op in flow.calls("roll"):
        method = op.name.startswith(".")
        given = op.of if method else op.args[0] if op.args else None
        shift = op.argument("shifts", 0 if method else 1)
        dims = op.argument("dims", 1 if method else 2)
        number = shift.number() if shift is not None else None
        if given is None or number != -1 or dims is None or dims.number() in (None, 0):
            continue
        if not _piece_of_sequence(given) or _mended(flow, op):
            continue
        if _names_target(op):
            yield hit(op)


def _piece_of_sequence(value: Value) -> bool:
    """`tokens[:, rank * size : (rank + 1) * size]`, or this rank's of several chunks along the same side."""
    by = value.attrs.get("by")
    if by is not None and "sliced" in value.attrs:
        cuts = by.items or []
        if by.kind == "tuple" and len(cuts) > 1 and any(cut.kind == "slice" and cut.has("rank") for cut in cuts[1:]):
            return True
        made = value.attrs["sliced"].made
        if (
            by.has("rank")
            and by.kind != "slice"
            and made is not None
            and made.last in ("chunk", "split", "tensor_split")
        ):
            side = made.argument("dim", 1 if made.name.startswith(".") else 2)
            return side is not None and side.number() not in (None, 0)
    made = value.made
    if made is not None and made.last in ("contiguous", "clone", "to", "long") and made.of is not None:
        return _piece_of_sequence(made.of)
    if made is not None and made.last == "narrow":
        side = made.argument("dim", 0 if made.name.startswith(".") else 1)
        return side is not None and side.number() not in (None, 0) and any(one.has("rank") for one in made.args)
    return False


def _mended(flow: Flow, op: Op) -> bool:
    """The last one is set afterwards, or masked."""
    later = [one for one in flow.of_kind("setitem") if one.index > op.index and one.of is op.result]
    return bool(later) or any(one.of is op.result for one in flow.calls("masked_fill_", "index_fill_", "copy_"))


def _names_target(op: Op) -> bool:
    """What is rolled is called a target, or is given to a loss at once."""
    line = op.module.lines[op.line - 1] if op.line <= len(op.module.lines) else ""
    return bool(re.search(r"(?i)target|label|\by\b|next|tgt|cross_entropy|loss", line))


@every_distributed_program("broadcast")
def sent_by_another(flow: Flow) -> Iterator[Hit]:
    """Each parameter is stepped by its owner, and sent to all by a rank that is chosen in another way."""
    for op in flow.calls("broadcast"):
        node, loop = op.node, op.loops[-1].node if op.loops else None
        if not isinstance(node, ast.Call) or not isinstance(loop, ast.For) or not steps(flow):
            continue
        source = next((key.value for key in node.keywords if key.arg in ("src", "group_src")), None)
        source = source or (node.args[1] if len(node.args) > 1 else None)
        index = _index(loop.target)
        if source is None or not index or index not in _names(source):
            continue
        owners = list(_owners(op.module.tree))
        if len({text for text, _ in owners}) != 1:
            continue
        owner, chosen = owners[0]
        if _plain(source, index) != owner and not _agrees(op.module, chosen, source, node):
            yield Hit((event_of(op), *at(op.module, chosen).quoted))


def _index(target: ast.expr) -> str:
    """Of `for i, p in enumerate(...)`."""
    if isinstance(target, ast.Tuple) and target.elts and isinstance(target.elts[0], ast.Name):
        return target.elts[0].id
    return ""


def _owners(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """`[p for i, p in enumerate(params) if owner[i] == rank]`: which parameters a rank steps."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ListComp | ast.GeneratorExp) or len(node.generators) != 1:
            continue
        one = node.generators[0]
        index = _index(one.target)
        if not index or dotted(one.iter.func if isinstance(one.iter, ast.Call) else one.iter) != "enumerate":
            continue
        for test in one.ifs:
            if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
                for side, other in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
                    if index in _names(side) and re.search(r"(?i)rank\b|get_rank\(\)$", text_of(other)):
                        yield _plain(side, index), side


def _plain(node: ast.expr, index: str) -> str:
    """As text, whatever the loop's variable and the number of ranks are called."""
    text = re.sub(rf"\b{index}\b", "#", text_of(node))
    return re.sub(r"(?:\w+\.)*(?:get_world_size\(\)|(?:n_|num_)?(?:world\w*|ranks|replicas|n_ranks|size))\b", "W", text)


def _agrees(module: Module, owner: ast.expr, source: ast.expr, sends: ast.Call) -> bool:
    """One is a table that is filled by the other's formula, or neither can be told."""
    formula = source if isinstance(source, ast.BinOp) else owner
    if not isinstance(formula, ast.BinOp):
        return True
    mark = type(formula.op)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, mark) and node is not formula:
            if mark is not ast.Mod or re.search(r"(?i)world|rank|size", text_of(node.right)):
                return not _inside(sends, node)
    return False


def _inside(outer: ast.AST, inner: ast.AST) -> bool:
    return any(part is inner for part in ast.walk(outer))


# -- a softmax over classes that the ranks share out ---------------------------------------------------------------


@every_file("all_reduce")
def exponentials_by_own_maximum(flow: Flow, module: Module) -> Iterator[Hit]:
    """Sums of exponentials are added up over the ranks, though each has taken another maximum off."""
    yield from (at(module, call) for function, call in _summed_exponentials(flow, module) if _takes_maximum(function))


@every_file("all_reduce")
def exponentials_without_maximum(flow: Flow, module: Module) -> Iterator[Hit]:
    """The same, of scores as they are: large ones have no exponential."""
    for function, call in _summed_exponentials(flow, module):
        if not _takes_maximum(function):
            yield at(module, call)


def _takes_maximum(function: Function) -> bool:
    return re.search(r"\b(?:max|amax|clamp\w{0,8}|clip|log_softmax|logsumexp)\(", text_of(function)) is not None


def _summed_exponentials(flow: Flow, module: Module) -> Iterator[tuple[Function, ast.Call]]:
    """Where the logarithm of such a sum is taken, and no maximum goes over the ranks anywhere."""
    if flow.mentions(r"ReduceOp\.MAX\b|op=.?max\b"):
        return
    helpers = {name for name, one in module.functions.items() if "all_reduce" in text_of(one)}
    helpers |= {name for name, one in module.classes.items() if "all_reduce" in text_of(one)}
    for function in module.statements:
        if not isinstance(function, Function) or not re.search(r"\blog\(", text_of(function)):
            continue
        if not re.search(r"sum\(", text_of(function)):
            continue
        known: set[str] = set()
        for name, value in _assigned(function):
            if re.search(r"\bexp\(", text_of(value)) or _names(value) & known:
                known.add(name)
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and node.args and _reduces(node, helpers):
                if re.search(r"\bexp\(", text_of(node.args[0])) or _names(node.args[0]) & known:
                    yield function, node
                    break


def _reduces(call: ast.Call, helpers: set[str]) -> bool:
    called = dotted(call.func).removesuffix(".apply")
    return called.rsplit(".", 1)[-1] == "all_reduce" or called in helpers


# -- recomputation -------------------------------------------------------------------------------------------------


@every_file("checkpoint(")
def one_checkpoint_for_all(flow: Flow, module: Module) -> Iterator[Hit]:
    """Around the whole stack: when it is recomputed, all its layers' activations are alive at once."""
    names = {name for name, full in module.imports.items() if full == "torch.utils.checkpoint.checkpoint"}
    found = [(cls, node) for cls in module.classes.values() for node in _checkpoints(cls, names)]
    if not names or flow.mentions(r"checkpoint_sequential|checkpoint_wrapper|apply_activation_checkpoint"):
        return
    whole = []
    for cls, node in found:
        stack = _stack_in(flow, module, cls, node)
        if stack is not None and _is_only_one(flow, module, cls):
            whole.append((node, stack))
    others = [(cls, node) for cls, node in found if all(node is not one for one, _ in whole)]
    if len(whole) == 1 and all(
        cls is whole[0][1] and _off_unless_asked(cls, node, whole[0][0]) for cls, node in others
    ):
        yield at(module, whole[0][0], name=text_of(whole[0][0].args[0]))


def _checkpoints(cls: ast.ClassDef, names: set[str]) -> Iterator[ast.Call]:
    for node in ast.walk(cls):
        if isinstance(node, ast.Call) and node.args:
            called = dotted(node.func)
            if called in names or called.endswith("checkpoint.checkpoint"):
                yield node


def _stack_in(flow: Flow, module: Module, cls: ast.ClassDef, call: ast.Call) -> ast.ClassDef | None:
    """The class of `self.encoder` in `checkpoint(self.encoder, x)`, which goes through a list of layers."""
    name = text_of(call.args[0])
    if not re.fullmatch(r"self\.\w+", name) or any(
        isinstance(loop, ast.For | ast.While | ast.ListComp) and _inside(loop, call) for loop in ast.walk(cls)
    ):
        return None
    for node in ast.walk(cls):
        if isinstance(node, ast.Assign) and text_of(node.targets[0]) == name and isinstance(node.value, ast.Call):
            inner = flow.program.class_of(dotted(node.value.func), module)
            forward = _method(inner[1], "forward") if inner is not None else None
            if inner is not None and forward is not None and _goes_through_layers(forward, inner[1]):
                return inner[1]
    return None


def _is_only_one(flow: Flow, module: Module, cls: ast.ClassDef) -> bool:
    """One model with one stack: of several stacks or stages, each checkpoint leaves the others' activations out."""
    made = [node.value for node in ast.walk(cls) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    inner = [flow.program.class_of(dotted(one.func), module) for one in made]
    stacks = [one for one in inner if one and (f := _method(one[1], "forward")) and _goes_through_layers(f, one[1])]
    lists = re.findall(r"\bModuleList\(|\bSequential\(\*", text_of(cls))
    repeats = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.DictComp)
    for one in flow.nodes:
        calls = [node for node in ast.walk(one.tree) if isinstance(node, ast.Call) and dotted(node.func) == cls.name]
        loops = [node for node in ast.walk(one.tree) if isinstance(node, repeats)]
        if len(calls) > 1 or any(_inside(loop, call) for loop in loops for call in calls):
            return False
    return len(stacks) == 1 and not lists


def _method(cls: ast.ClassDef, name: str) -> Function | None:
    return next((one for one in cls.body if isinstance(one, Function) and one.name == name), None)


def _goes_through_layers(forward: Function, cls: ast.ClassDef) -> bool:
    for node in ast.walk(forward):
        held = re.search(r"self\.(\w+)", text_of(node.iter)) if isinstance(node, ast.For) else None
        if held and re.search(rf"self\.{held[1]}\s*=\s*(?:torch\.)?(?:nn\.)?ModuleList\(", text_of(cls)):
            return True
    return False


def _off_unless_asked(cls: ast.ClassDef, node: ast.Call, outer: ast.Call) -> bool:
    """The stack could recompute each layer itself, by an argument that is False where nobody gives it."""
    forward = _method(cls, "forward")
    if forward is None or not _inside(forward, node):
        return False
    arguments = forward.args
    named = [*(one.arg for one in arguments.args[-len(arguments.defaults) :] if arguments.defaults)]
    off = {
        name
        for name, default in zip(named, arguments.defaults, strict=False)
        if isinstance(default, ast.Constant) and default.value is False
    }
    given = {key.arg for key in outer.keywords}
    asked = len(outer.args) > len(arguments.args) - len(arguments.defaults)
    guards = [part for part in ast.walk(forward) if isinstance(part, ast.If | ast.IfExp) and _inside(part, node)]
    return not asked and any(_names(part.test) & off - given for part in guards)


# -- unlike models -------------------------------------------------------------------------------------------------


@every_distributed_program("forward")
def trained_on_one_rank(flow: Flow) -> Iterator[Hit]:
    """A network that one rank alone has trained is used by all of them, and nobody has sent it."""
    if model_parallel(flow):
        return
    used = [op for op in forwards(flow) if not op.label and op.loops and _trains_beside(flow, op)]
    for one in backwards(flow):
        root = one.loss.root
        if one.op.label != "first" or root is None or not one.op.loops:
            continue
        if any(other.loss.root is root and not other.op.label for other in backwards(flow)):
            continue
        for op in used:
            if op.of is None or op.of.base is not root or op.index < one.op.index:
                continue
            between = flow.ops[one.op.index : op.index]
            if not any(_hands_out(each, root) for each in between):
                yield hit(op, one.op)
                return


def _trains_beside(flow: Flow, op: Op) -> bool:
    """In a round of training of another network."""
    return any(
        op.within(loop) and one.loss.root is not None and op.of is not None and op.of.base is not one.loss.root
        for one in backwards(flow)
        for loop in one.op.loops[-1:]
        if not one.op.label
    )


def _hands_out(op: Op, root: Value) -> bool:
    """Sends, reads back or wraps: afterwards all ranks may have the same."""
    if op.kind != "call" or op.label:
        return False
    if re.search(
        r"broadcast|load_state_dict|load_checkpoint|_sync_module_states|scatter|all_reduce|all_gather", op.last
    ):
        return True
    results = [op.result, *(op.result.items or ())]
    return any(value.kind == "model" and value.wrap and value.base is root for value in results)

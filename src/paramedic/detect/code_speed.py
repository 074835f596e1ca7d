"""Programs that are slow by the way they are written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.every import every_distributed_program, every_file, every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import (
    averages,
    backwards,
    behind_modulo,
    conditional,
    forwards,
    gradient_reductions,
    hit,
    model_parallel,
    steps,
    training_loops,
    wrapped,
)
from paramedic.detect.program import Function, Module, text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op, Value
from paramedic.model import Event

_OPENS = frozenset(
    [
        "open",
        "gzip.open",
        "bz2.open",
        "lzma.open",
        "np.load",
        "numpy.load",
        "np.loadtxt",
        "numpy.loadtxt",
        "np.genfromtxt",
        "pd.read_csv",
        "pandas.read_csv",
        "pd.read_parquet",
        "pandas.read_parquet",
        "pd.read_json",
        "json.load",
        "pickle.load",
        "torch.load",
        "h5py.File",
        "pd.read_pickle",
        "pd.read_excel",
        "np.fromfile",
        "zipfile.ZipFile",
        "tarfile.open",
        "sqlite3.connect",
        "pq.read_table",
    ]
)


def _in_every_step(flow: Flow, *names: str) -> Iterator[Op]:
    """Calls in a training loop that no condition inside it holds back."""
    loops = training_loops(flow)
    for op in flow.calls(*names):
        loop = next((one for one in loops if op.loops and op.loops[-1] is one), None)
        if loop is not None and not conditional(op, loop):
            yield op


@every_file("def __getitem__")
def file_read_for_every_sample(flow: Flow, module: Module) -> Iterator[Hit]:
    """A file that does not depend on the index is opened in `__getitem__`, or in a method that it calls."""
    for cls in module.classes.values():
        if flow.program.bases(module, cls) & {"Dataset", "VisionDataset", "TensorDataset"}:
            yield from _opened(module, cls)


def _opened(module: Module, cls: ast.ClassDef) -> Iterator[Hit]:
    methods = {child.name: child for child in cls.body if isinstance(child, Function)}
    item = methods.get("__getitem__")
    if (
        item is None
        or len(item.args.args) < 2
        or any("cache" in text_of(d) for m in methods.values() for d in m.decorator_list)
    ):
        return
    index = item.args.args[1].arg
    yield from _opened_in(module, cls, item, {index}, 0)


def _opened_in(
    module: Module, cls: ast.ClassDef, method: Function, of_index: set[str], depth: int
) -> Iterator[Hit]:  # fmt: skip
    methods = {child.name: child for child in cls.body if isinstance(child, Function)}
    known = set(of_index)
    functions = module.functions
    for _ in range(2):
        for node in ast.walk(method):
            if (
                isinstance(node, ast.Assign | ast.AnnAssign | ast.For | ast.NamedExpr)
                and (value := node.iter if isinstance(node, ast.For) else node.value) is not None
            ):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if known & _names(value):
                    known |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    lazily = bool(re.search(r"is None|not hasattr|not in self\.", text_of(method)))
    for node in ast.walk(method):
        if not isinstance(node, ast.Call) or lazily:
            continue
        name = text_of(node.func)
        used = (
            set().union(*(_names(one) for one in (*node.args, *(k.value for k in node.keywords))))
            if node.args or node.keywords
            else set()
        )
        if name in _OPENS and node.args and not known & used and not _mode_is_write(node):
            if (
                name in ("json.load", "pickle.load", "torch.load", "np.load", "numpy.load")
                and isinstance(node.args[0], ast.Name)
                and node.args[0].id not in {"self"}
                and not _opened_here(method, node.args[0].id)
            ):
                continue
            if any(kw.arg in {"mmap_mode", "mmap"} for kw in node.keywords) or re.search(
                r"\.seek\(|offset", text_of(method)
            ):
                continue
            line = module.lines[node.lineno - 1].strip()[:200]
            yield Hit(
                (Event(module.source, node.lineno, "code", line, node.lineno),),
                {"name": name, "where": f"{cls.name}.__getitem__"},
            )
        elif depth < 2 and name.startswith("self.") and name[5:] in methods and methods[name[5:]] is not method:
            inner = methods[name[5:]]
            passed = {
                arg.arg for arg, value in zip(inner.args.args[1:], node.args, strict=False) if known & _names(value)
            }
            yield from _opened_in(module, cls, inner, passed, depth + 1)
        elif depth < 2 and name in functions:
            inner = functions[name]
            passed = {arg.arg for arg, value in zip(inner.args.args, node.args, strict=False) if known & _names(value)}
            if not any("cache" in text_of(d) for d in inner.decorator_list):
                yield from _opened_in(module, cls, inner, passed, depth + 1)


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _opened_here(method: Function, name: str) -> bool:
    return any(
        isinstance(item.optional_vars, ast.Name) and item.optional_vars.id == name
        for node in ast.walk(method)
        if isinstance(node, ast.With)
        for item in node.items
    )


def _mode_is_write(node: ast.Call) -> bool:
    modes = [
        one
        for one in (*node.args[1:2], *(k.value for k in node.keywords if k.arg == "mode"))
        if isinstance(one, ast.Constant)
    ]
    return any(isinstance(one.value, str) and re.search(r"[wax]", one.value) for one in modes)


@every_distributed_program("barrier", "wait_for_everyone")
def barrier_in_every_step(flow: Flow) -> Iterator[Hit]:
    for op in _in_every_step(flow, "barrier", "wait_for_everyone"):
        yield hit(op)


@every_program("empty_cache", "collect", "synchronize")
def device_emptied_in_every_step(flow: Flow) -> Iterator[Hit]:
    for op in _in_every_step(flow, "empty_cache", "collect", "synchronize"):
        if op.name in ("torch.cuda.empty_cache", "gc.collect") or (
            op.name == "torch.cuda.synchronize"
            and not flow.mentions(r"perf_counter|time\.time\(|Event\(|monotonic|timeit")
        ):
            yield hit(op, name=op.name)


@every_program("save", "save_checkpoint", "save_state")
def saved_in_every_step(flow: Flow) -> Iterator[Hit]:
    loops = training_loops(flow)
    for op in flow.calls("save", "save_checkpoint", "save_state"):
        loop = next((one for one in loops if op.loops and op.loops[-1] is one), None)
        if loop is None or (op.name != "torch.save" and op.last == "save"):
            continue
        number = len(op.loops) - 1
        free = [g for g in op.guards if not g.pure and g.depth > number]
        over = loop.through
        if (
            not free
            and "epoch" not in loop.target
            and over.kind in ("loader", "range", "batch", "iter", "")
            and _is_batch(flow, loop.node)
        ):
            yield hit(op)


def _is_batch(flow: Flow, node: ast.AST) -> bool:
    """No loop over batches below it: this is the loop over batches."""
    return not any(isinstance(part, ast.For | ast.While) and part is not node for part in ast.walk(node))


@every_distributed_program()
def tiny_buckets(flow: Flow) -> Iterator[Hit]:
    for op in wrapped(flow, "ddp"):
        size = op.argument("bucket_cap_mb")
        number = size.number() if size is not None else None
        if number is not None and number <= 1:
            found = hit(op, size=number)
            yield found if number < 1 else Hit(found.quoted, found.fields, "info")


@every_distributed_program()
def one_collective_per_parameter(flow: Flow) -> Iterator[Hit]:
    if model_parallel(flow):
        return
    loops = training_loops(flow)
    for op in gradient_reductions(flow):
        if len(op.loops) > 1 and op.loops[-1].over.kind == "params" and any(op.within(one) for one in loops):
            asynchronous = op.argument("async_op")
            if asynchronous is None or asynchronous.const is not True:
                yield hit(op)


@every_program("set_detect_anomaly", "detect_anomaly")
def anomaly_detection(flow: Flow) -> Iterator[Hit]:
    for op in flow.calls("set_detect_anomaly", "detect_anomaly"):
        given = op.args[0] if op.args else op.keywords.get("mode")
        on = (given is not None and given.const is True) or (op.last == "detect_anomaly" and given is None)
        if on and not any(guard.node is not None and not guard.label for guard in op.guards) and backwards(flow):
            yield hit(op, name=op.last)


@every_distributed_program("set_num_threads")
def one_thread(flow: Flow) -> Iterator[Hit]:
    backend = [op.argument("backend", 0) for op in flow.calls("init_process_group")]
    on_cpu = any(value is not None and value.const == "gloo" for value in backend)
    for op in flow.calls("set_num_threads"):
        if on_cpu and op.args and op.args[0].number() == 1 and not flow.mentions(r"\.cuda\(|['\"]cuda"):
            yield hit(op)


@every_program("cuda", "to", "item")
def moved_piece_by_piece(flow: Flow) -> Iterator[Hit]:
    """Elements of a batch are sent to the device, or read back, one at a time."""
    loops = training_loops(flow)
    for op in flow.calls("cuda", "to", "item"):
        if len(op.loops) < 2 or not isinstance(op.loops[-1].node, ast.ListComp | ast.GeneratorExp | ast.For):
            continue
        inner, of = op.loops[-1], op.of
        if of is None or of.kind in ("model", "params") or not any(op.loops[-2] is one for one in loops):
            continue
        node = op.node
        receiver = (
            text_of(node.func.value) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
        )
        stop = inner.over.attrs.get("stop") if inner.over.kind == "range" else None
        number = stop.number() if stop is not None else None
        many = (number is not None and number >= 32) or (stop is not None and stop.has("len"))
        if many and inner.target and re.search(rf"[\[,][^\],:]*\b{re.escape(inner.target)}\b[^\],:]*[\],]", receiver):
            if op.last != "to" or (op.args and not op.args[0].name.startswith("torch.")):
                yield hit(op, name=op.last)


# -- unequal work --------------------------------------------------------------------------------------------------


@every_distributed_program("DataLoader", "range", "sleep", "randn", "rand", "randint")
def work_by_rank(flow: Flow) -> Iterator[Hit]:
    """How much a rank does in a step grows with its number."""
    if model_parallel(flow):
        return
    loops = training_loops(flow)
    for op in flow.calls("DataLoader"):
        size = op.argument("batch_size", 1)
        if size is not None and _grows(size) and averages(flow):
            yield hit(op, what="The batch")
    for op in flow.calls("range"):
        if (
            any(op.within(loop) for loop in loops)
            and op.args
            and _grows(op.args[-1])
            and not op.args[-1].has("len", "data")
        ):
            yield hit(op, what="The number of rounds")
    for op in flow.calls("sleep"):
        if (
            op.name == "time.sleep"
            and any(op.within(loop) for loop in loops)
            and not behind_modulo(op)  # as one saves or logs: the others wait then, and that is meant
            and (op.label or (op.args and op.args[0].has("rank") and "op" in op.args[0].attrs))
        ):
            yield hit(op, what="A pause")
    for op in flow.calls("randn", "rand", "randint"):
        if any(op.within(loop) for loop in loops) and op.args and not op.no_grad:
            first = op.args[0].items[0] if op.args[0].items else op.args[0]
            if _grows(first) and averages(flow):
                yield hit(op, what="The batch")


def _grows(value: Value, depth: int = 0) -> bool:
    """`8 * (rank + 1)`, and not `n // world + (rank < rest)`."""
    op = value.attrs.get("op")
    if op is None or not value.has("rank") or depth > 4:
        return False
    left, right = value.attrs["left"], value.attrs["right"]
    if op.name == "Mult" and (left.has("rank") or right.has("rank")):
        return not (value.has("/world") or value.has("len"))
    return op.name in ("Add", "Sub", "FloorDiv") and any(_grows(one, depth + 1) for one in (left, right))


@every_distributed_program()
def sorted_blocks(flow: Flow) -> Iterator[Hit]:
    """Sorted by length and dealt out in blocks: one rank gets the longest."""
    for op in flow.of_kind("slice"):
        if op.of is None or op.args[0].kind != "slice":
            continue
        node, bounds = op.node, op.args[0].items or []
        cut = node.slice if isinstance(node, ast.Subscript) else None
        if not isinstance(cut, ast.Slice) or cut.step is not None or len(bounds) < 2:
            continue
        if not _times_rank(bounds[0]):
            continue
        made = op.of.made
        if (made is not None and made.last in ("sorted", "sort_values")) or _sorted_before(flow, op):
            yield hit(op)


def _times_rank(value: Value) -> bool:
    """`rank * share`: where the rank's block begins."""
    op = value.attrs.get("op")
    return op is not None and op.name == "Mult" and any(value.attrs[side].has("rank") for side in ("left", "right"))


def _sorted_before(flow: Flow, op: Op) -> bool:
    pieces = op.of.element if op.of is not None and isinstance(op.of.node, ast.ListComp) else None
    if pieces is not None and (whole := pieces.attrs.get("sliced")) is not None and not pieces.attrs["by"].has("rank"):
        if any(one.args and one.args[0] is op.of for one in flow.calls("shuffle") if one.index < op.index):
            return False
        made = whole.made  # batches of neighbours
        if made is not None and made.last == "sorted":
            return bool(re.search(r"len|size|length|numel", text_of(made.node)))
        return any(
            one.of is whole and re.search(r"len|size|length|numel", text_of(one.node)) for one in flow.calls("sort")
        )
    for one in flow.ops[: op.index]:
        if one.last == "sort" and one.of is op.of and re.search(r"len|size|length|numel", text_of(one.node)):
            return True
        if one.last == "sorted" and (
            one.result is op.of or one.result is (op.of.attrs.get("sliced") if op.of else None)
        ):
            return bool(re.search(r"len|size|length|numel|key", text_of(one.node)))
    return False


@every_distributed_program("forward")
def work_of_one_rank(flow: Flow) -> Iterator[Hit]:
    """The first rank validates or saves in the loop while the others wait for it."""
    if model_parallel(flow):
        return
    loops = training_loops(flow)
    for op in forwards(flow):
        if not op.no_grad or op.label != "first" or not any(op.within(loop) for loop in loops) or not op.loops:
            continue
        free = [g for g in op.guards if not g.label and g.node is not None]
        if not free and len(op.loops) > 1 and steps(flow):
            yield hit(op)


@every_program("fully_shard", "FullyShardedDataParallel")
def sync_switched_off_in_vain(flow: Flow) -> Iterator[Hit]:
    """`require_backward_grad_sync` is an attribute of DDP; sharded models do not read it."""
    if flow.has("set_requires_gradient_sync", "no_sync") or wrapped(flow, "ddp"):
        return
    for op in flow.of_kind("setattr"):
        of = op.of
        if op.name != "require_backward_grad_sync" or of is None or of.kind != "model" or op.args[0].const is True:
            continue
        if of.wrap in ("fsdp", "fsdp2") or of.base.wrap == "fsdp2":
            yield hit(op)

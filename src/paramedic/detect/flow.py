"""What a training program does, in order: values followed through names, functions, classes and files.

Nothing is executed. Every loop is gone through once, both branches of a condition are taken, and of each value it is known
what it depends on: the rank, the number of ranks, chance, the graph of the model, a shard of the data.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from paramedic.detect.program import Function, Module, Program, text_of

_NOTHING: Any = object()
_MOST = 8000
_DEEPEST = 12
RANK = re.compile(
    r"(?i)(?:^|_)rank(?:_id)?$|^(?:get_|world_|global_|local_)?rank$|process_index$|^local_rank$|^procid$"
)
FIRST = re.compile(
    r"(?i)^is_(?:main|master|chief|primary|first|leader|root|rank)\w*$|^is_(?:global|local|world)_(?:process_)?zero$"
    r"|(?:main|master)_process$"
)
WORLD = re.compile(
    r"(?i)^(?:n_|num_|world_?|get_world_?)(?:size|ranks|processes|replicas|workers_total)?$|world_?size$|num_replicas|num_processes$|^world$|^n_?ranks$"
)
_RANK_VARIABLES = {"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}
_WORLD_VARIABLES = {"WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}
_RANK_CALLS = {
    "get_rank",
    "get_world_rank",
    "get_global_rank",
    "process_index",
    "get_local_rank",
    "get_node_local_rank",
}
_WORLD_CALLS = {"get_world_size", "world_size", "num_processes"}
RANDOM = frozenset(
    [
        "randn",
        "rand",
        "randint",
        "randperm",
        "normal",
        "uniform",
        "multinomial",
        "bernoulli",
        "permutation",
        "shuffle",
        "choice",
        "standard_normal",
        "sample",
        "random",
        "integers",
        "choices",
        "randrange",
        "uniform_",
        "normal_",
        "random_",
        "exponential_",
        "bernoulli_",
        "randn_like",
        "rand_like",
    ]
)
_SEEDS = {"manual_seed", "manual_seed_all", "seed", "set_seed", "seed_everything", "default_rng", "RandomState"}
_WITHOUT_GRAPH = frozenset(
    [
        "item",
        "tolist",
        "numpy",
        "detach",
        "detach_",
        "argmax",
        "argmin",
        "size",
        "numel",
        "dim",
        "data_ptr",
        "backward",
        "len",
        "int",
        "float",
        "str",
        "bool",
        "print",
        "format",
        "isfinite",
        "isnan",
        "topk",
        "eq",
        "ne",
        "all",
        "any",
        "info",
        "debug",
        "warning",
        "range",
        "isinstance",
        "hasattr",
    ]
)
_SAME = frozenset(
    [
        "to",
        "cuda",
        "cpu",
        "float",
        "half",
        "double",
        "bfloat16",
        "train",
        "eval",
        "compile",
        "contiguous",
        "type",
        "requires_grad_",
        "share_memory",
        "share_memory_",
        "convert_sync_batchnorm",
        "to_empty",
        "apply",
        "xpu",
    ]
)
_THROUGH = frozenset(
    ["iter", "tqdm", "islice", "cycle", "trange", "reversed", "list", "tuple", "chain", "track", "batched"]
)
_OPTIMIZERS = frozenset(
    [
        "Adam",
        "AdamW",
        "SGD",
        "RMSprop",
        "Adagrad",
        "Adadelta",
        "Adamax",
        "LBFGS",
        "NAdam",
        "RAdam",
        "Rprop",
        "ASGD",
        "SparseAdam",
        "Adafactor",
        "ZeroRedundancyOptimizer",
        "FusedAdam",
        "DeepSpeedCPUAdam",
        "FusedLAMB",
        "Lion",
        "HybridAdam",
        "CPUAdam",
        "LARS",
        "LAMB",
        "Muon",
    ]
)
_KERAS_LAYERS = re.compile(r"(?:^|\.)(?:keras|layers)\.")
_SCHEDULER = re.compile(r"LR$|Scheduler$|Restarts$|^get_\w*(?:schedule|scheduler)(?:_with_\w+)?$|^ReduceLROnPlateau$")
WRAPPERS = {
    "DistributedDataParallel": "ddp", "FullyShardedDataParallel": "fsdp", "fully_shard": "fsdp2", "prepare_model": "ray",
    "prepare_ddp_model": "ddp", "FSDP": "fsdp", "DDP": "ddp", "replicate": "ddp", "ShardedDataParallel": "fsdp",
    "LegacyDistributedDataParallel": "ddp", "wrap_model": "ddp",
}  # fmt: skip


@dataclass(eq=False, slots=True)
class Value:
    """What is known of a value: its kind, what it depends on, and, for a model, what wraps it."""

    kind: str = ""
    tags: frozenset[str] = frozenset()
    name: str = ""
    const: Any = _NOTHING
    items: list[Value] | None = None
    attrs: dict[str, Value] = field(default_factory=dict)
    root: Value | None = None
    wrap: str = ""
    made: Op | None = None
    node: ast.AST | None = None
    module: Module | None = None
    label: str = ""
    equals: str = ""
    bases: frozenset[str] = frozenset()
    element: Value | None = None

    @property
    def known(self) -> bool:
        return self.const is not _NOTHING

    @property
    def base(self) -> Value:
        """The model below its wrappers."""
        return self.root or self

    def has(self, *tags: str) -> bool:
        return not self.tags.isdisjoint(tags)

    def number(self) -> float | None:
        return self.const if isinstance(self.const, int | float) and not isinstance(self.const, bool) else None


@dataclass(eq=False, frozen=True, slots=True)
class Loop:
    node: ast.AST
    over: Value
    target: str


@dataclass(eq=False, frozen=True, slots=True)
class Guard:
    """A condition. `label`: which ranks go on, where it speaks of ranks. `depth`: in how many loops it stands."""

    node: ast.AST | None
    label: str
    equals: str
    value: Value
    depth: int = 0

    @property
    def pure(self) -> bool:
        """It asks for the rank and nothing else."""
        return bool(self.label) and not isinstance(self.node, ast.BoolOp)


@dataclass(eq=False, frozen=True, slots=True)
class Context:
    """One `with`. `sure`: it is entered whatever the condition."""

    name: str
    of: Value | None
    sure: bool
    value: Value


@dataclass(eq=False, slots=True)
class Op:
    """A call (`name` dotted, or `.method` of a value), an assignment to an attribute or item, `+=`, or `yield`."""

    kind: str
    name: str
    node: ast.AST
    module: Module
    index: int
    args: tuple[Value, ...]
    keywords: dict[str, Value]
    loops: tuple[Loop, ...]
    guards: tuple[Guard, ...]
    contexts: tuple[Context, ...]
    stack: tuple[str, ...]
    of: Value | None = None
    result: Value = field(default_factory=Value)
    target: str = ""
    dropped: bool = False
    starred: bool = False

    @property
    def last(self) -> str:
        return self.name.rsplit(".", 1)[-1]

    @property
    def line(self) -> int:
        return getattr(self.node, "lineno", 1)

    def argument(self, name: str, position: int | None = None) -> Value | None:
        if name in self.keywords:
            return self.keywords[name]
        if position is not None and position < len(self.args):
            return self.args[position]
        return None

    def inside(self, *names: str) -> bool:
        return any(context.name in names for context in self.contexts)

    @property
    def no_grad(self) -> bool:
        return self.inside("no_grad", "inference_mode", "set_grad_enabled")

    @property
    def label(self) -> str:
        """Which ranks get here: the innermost condition that speaks of ranks."""
        return next((guard.label for guard in reversed(self.guards) if guard.label), "")

    def within(self, loop: Loop) -> bool:
        return any(one is loop for one in self.loops)


@dataclass(eq=False, slots=True)
class _Frame:
    module: Module
    names: dict[str, Value]
    returned: list[Value] = field(default_factory=list)
    yielded: list[Value] = field(default_factory=list)
    guards: int = 0
    """How many conditions held when it was called."""


class Flow:
    """One program: a file that trains, with all that it calls."""

    def __init__(self, program: Program, module: Module, covered: set[ast.AST]) -> None:
        self.program = program
        self.module = module
        self.ops: list[Op] = []
        self.globals: dict[str, dict[str, Value]] = {}
        self.loops: tuple[Loop, ...] = ()
        self.guards: tuple[Guard, ...] = ()
        self.contexts: tuple[Context, ...] = ()
        self.stack: tuple[str, ...] = ()
        self.running: list[ast.AST] = []
        self.visits: dict[ast.AST, int] = {}
        self.covered = covered
        self.seeds: list[Op] = []
        self.nodes: set[Module] = {module}
        self._started(module)
        self._leftovers(module)

    # -- what rules ask --------------------------------------------------------------------------------------------

    def calls(self, *names: str) -> Iterator[Op]:
        for op in self.ops:
            if op.kind == "call" and op.last in names:
                yield op

    def has(self, *names: str) -> bool:
        return any(True for _ in self.calls(*names))

    def mentions(self, pattern: str) -> bool:
        """A word anywhere in the files that take part."""
        return any(re.search(pattern, module.text) for module in self.nodes)

    # -- running ---------------------------------------------------------------------------------------------------

    def _started(self, module: Module) -> dict[str, Value]:
        if module.source in self.globals:
            return self.globals[module.source]
        names: dict[str, Value] = {"__name__": Value(const="__main__")}
        self.globals[module.source] = names
        self.nodes.add(module)
        for name, node in module.functions.items():
            names[name] = Value("function", name=name, node=node, module=module)
        for name, one in module.classes.items():
            names[name] = self._class(name, one, module)
        frame = _Frame(module, names)
        if module is self.module:
            self._body(module.tree.body, frame)
        else:
            kept = self.loops, self.guards, self.contexts
            self.loops, self.guards, self.contexts = (), (), ()
            body = [node for node in module.tree.body if not _is_main(node)]
            self._body(body, frame)
            self.loops, self.guards, self.contexts = kept
        return names

    def _leftovers(self, module: Module) -> None:
        """Functions that nobody in the project calls: a launcher or a framework does."""
        names = self.globals[module.source]
        for name, node in module.functions.items():
            if node not in self.covered:
                self._run(Value("function", name=name, node=node, module=module), (), {}, None)
        for name, one in module.classes.items():
            value = self._class(name, one, module)
            methods = [child for child in one.body if isinstance(child, Function)]
            if all(child in self.covered for child in methods):
                continue
            instance = self._instance(value, (), {}, one)
            for child in methods:
                if child not in self.covered and child.name != "forward":
                    self._run(Value("function", name=child.name, node=child, module=module), (instance,), {}, None)
        del names

    def _class(self, name: str, node: ast.ClassDef, module: Module) -> Value:
        return Value("class", name=name, node=node, module=module, bases=frozenset(self.program.bases(module, node)))

    def _body(self, body: Sequence[ast.stmt], frame: _Frame) -> None:
        kept = self.guards
        for statement in body:
            if len(self.ops) > _MOST:
                break
            self._statement(statement, frame)
        self.guards = kept

    def _statement(self, node: ast.stmt, frame: _Frame) -> None:
        match node:
            case ast.Expr():
                value = self.value(node.value, frame)
                if isinstance(node.value, ast.Call) and value.made is not None and value.made.node is node.value:
                    value.made.dropped = True
                for op in reversed(self.ops[-3:]):
                    if op.node is node.value:
                        op.dropped = True
                        break
            case ast.Assign():
                value = self.value(node.value, frame)
                for target in node.targets:
                    self._assign(target, value, frame, node)
            case ast.AnnAssign():
                if node.value is not None:
                    self._assign(node.target, self.value(node.value, frame), frame, node)
            case ast.AugAssign():
                self._augmented(node, frame)
            case ast.If():
                self._if(node, frame)
            case ast.For() | ast.AsyncFor():
                over = self.value(node.iter, frame)
                loop = Loop(node, over, text_of(node.target))
                self.loops = (*self.loops, loop)
                self._assign(node.target, self._element(over), frame, node)
                self._body(node.body, frame)
                self.loops = self.loops[:-1]
                self._body(node.orelse, frame)
            case ast.While():
                test = self.value(node.test, frame)
                self.loops = (*self.loops, Loop(node, test, ""))
                self._body(node.body, frame)
                self.loops = self.loops[:-1]
            case ast.With() | ast.AsyncWith():
                kept = self.contexts
                for item in node.items:
                    self._enter(item, frame)
                self._body(node.body, frame)
                self.contexts = kept
            case ast.Try() | ast.TryStar():
                self._body(node.body, frame)
                for handler in node.handlers:
                    self._body(handler.body, frame)
                self._body(node.orelse, frame)
                self._body(node.finalbody, frame)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                frame.names[node.name] = Value(
                    "function", name=node.name, node=node, module=frame.module, attrs=frame.names
                )
            case ast.ClassDef():
                frame.names[node.name] = self._class(node.name, node, frame.module)
            case ast.Return():
                value = self.value(node.value, frame) if node.value is not None else Value(const=None)
                for guard in self.guards[frame.guards :]:
                    value = _by_rank(value, guard.value)
                frame.returned.append(value)
            case ast.Match():
                self.value(node.subject, frame)
                for case in node.cases:
                    self._body(case.body, frame)
            case ast.Import() | ast.ImportFrom():
                self._import(node, frame)
            case ast.Assert():
                self.value(node.test, frame)
            case ast.Delete():
                for target in node.targets:
                    self._op("delete", text_of(target), node, frame, (), {})
            case _:
                pass

    def _import(self, node: ast.Import | ast.ImportFrom, frame: _Frame) -> None:
        for alias in node.names:
            name = alias.asname or (alias.name if isinstance(node, ast.ImportFrom) else alias.name.split(".")[0])
            frame.names.pop(name, None)
            if isinstance(node, ast.ImportFrom):
                full = f"{node.module}.{alias.name}" if node.module else alias.name
            else:
                full = alias.name if alias.asname else alias.name.split(".")[0]
            frame.names[name] = self._named(full, frame.module)

    def _named(self, full: str, module: Module) -> Value:
        """A value of another file of the project, or a name of a library."""
        folder, _, last = full.rpartition(".")
        other = self.program.find(folder, module) if folder else None
        if (other is not None and other is not module and other.source in self.globals) or (
            other and other is not module
        ):
            assert other is not None
            names = self._started(other)
            if last in names:
                return names[last]
        whole = self.program.find(full, module)
        if whole is not None and whole is not module:
            return Value("file", name=full, module=whole)
        return Value("import", name=full)

    def _if(self, node: ast.If, frame: _Frame) -> None:
        test = self.value(node.test, frame)
        label = test.label or _guard(node.test)
        guard = Guard(node.test, label, test.equals, test, len(self.loops))
        opposite = Guard(node.test, _OPPOSITE.get(label, label), "", test, len(self.loops))
        before = dict(frame.names)
        kept = self.guards
        self.guards = (*kept, guard)
        self._body(node.body, frame)
        taken = frame.names
        after = dict(frame.names)
        if node.orelse:
            taken.clear()
            taken.update(before)
            self.guards = (*kept, opposite)
            self._body(node.orelse, frame)
            before = dict(taken)
        self.guards = kept
        leaves = bool(node.body) and _leaves(node.body[-1])
        if not leaves:
            for name, value in after.items():
                other = before.get(name)
                if other is None or other is value:
                    frame.names[name] = value
                else:
                    frame.names[name] = _by_rank(joined(value, other), test)
        elif not node.orelse:
            for name, value in before.items():
                frame.names[name] = value
            if label:
                self.guards = (*self.guards, opposite)

    def _enter(self, item: ast.withitem, frame: _Frame) -> None:
        count = len(self.ops)
        value = self.value(item.context_expr, frame)
        sure = isinstance(item.context_expr, ast.Call) and not any(
            isinstance(part, ast.IfExp) for part in ast.walk(item.context_expr)
        )
        found = [op for op in self.ops[count:] if op.kind == "call"]
        entered = [Context(op.last, op.of, sure and op.node is item.context_expr, value) for op in found]
        if not found:
            name = value.name.rsplit(".", 1)[-1]
            made = value.made
            entered = [Context(made.last if made else name, made.of if made else None, made is not None, value)]
        self.contexts = (*self.contexts, *entered)
        if item.optional_vars is not None:
            self._assign(item.optional_vars, value, frame, item.context_expr)

    def _assign(self, target: ast.expr, value: Value, frame: _Frame, node: ast.AST) -> None:
        match target:
            case ast.Name():
                if (value.kind == "import" or not value.known) and not value.tags and not value.kind:
                    hint = _hint(target.id)
                    if hint and value.made is not None and value.made.kind == "call":
                        value = Value(value.kind, value.tags | hint, value.name, made=value.made, items=value.items)
                frame.names[target.id] = value
            case ast.Tuple() | ast.List():
                for number, one in enumerate(target.elts):
                    if isinstance(one, ast.Starred):
                        self._assign(one.value, Value(tags=value.tags), frame, node)
                    elif value.items is not None and number < len(value.items):
                        self._assign(one, value.items[number], frame, node)
                    elif value.items is None and value.element is not None:
                        self._assign(one, value.element, frame, node)
                    else:
                        part = Value(tags=value.tags, made=value.made, root=value.root)
                        self._assign(one, part, frame, node)
            case ast.Attribute():
                of = self.value(target.value, frame)
                op = self._op("setattr", target.attr, node, frame, (value,), {}, of)
                op.target = text_of(target)
                of.attrs[target.attr] = value
                if of.kind in ("model", "instance") and (parts := _parts(value)):
                    of.tags |= parts
                if of.kind == "params" and target.attr == "grad" and value.const is None:
                    op.name = "grad=None"
            case ast.Subscript():
                of = self.value(target.value, frame)
                key = self.value(target.slice, frame)
                op = self._op("setitem", "", node, frame, (key, value), {}, of)
                op.target = text_of(target)
                if isinstance(key.const, str) and of.kind in ("dict", ""):
                    of.attrs[key.const] = value
                if not value.known:
                    of.tags |= value.tags
            case _:
                pass

    def _augmented(self, node: ast.AugAssign, frame: _Frame) -> None:
        value = self.value(node.value, frame)
        of = self.value(node.target, frame)
        op = self._op("augassign", type(node.op).__name__, node, frame, (value,), {}, of)
        op.target = text_of(node.target)
        result = _combined(node.op, of, value)
        result.made = op
        op.result = result
        if isinstance(node.target, ast.Name):
            frame.names[node.target.id] = result
        elif isinstance(node.target, ast.Attribute):
            holder = self.value(node.target.value, frame)
            holder.attrs[node.target.attr] = result

    def _element(self, over: Value) -> Value:
        if over.kind == "loader":
            return Value("batch", over.tags | {"data"}, attrs={"loader": over})
        if over.kind == "dataset":
            return Value("batch", over.tags | {"data"}, attrs={"loader": over})
        if over.kind == "params":
            return Value("params", over.tags | {"element"}, root=over.root, attrs={"of": over})
        if over.element is not None:
            return over.element
        if over.items:
            first = over.items[0]
            return (
                first
                if len(over.items) == 1
                else Value(first.kind, _union(over.items), items=first.items, root=first.root)
            )
        if over.kind == "model":
            return Value("model", over.tags, root=over.root, attrs={"parent": over})
        return Value(tags=over.tags - {"graph"} if over.kind == "range" else over.tags, made=over.made)

    # -- values ----------------------------------------------------------------------------------------------------

    def value(self, node: ast.expr | None, frame: _Frame) -> Value:
        match node:
            case None:
                return Value()
            case ast.Constant():
                return Value("number" if isinstance(node.value, int | float) else "", const=node.value)
            case ast.Name():
                return self._name(node.id, frame)
            case ast.Attribute():
                return self._attribute(node, frame)
            case ast.Call():
                return self._call(node, frame)
            case ast.BinOp():
                return _combined(node.op, self.value(node.left, frame), self.value(node.right, frame))
            case ast.UnaryOp():
                value = self.value(node.operand, frame)
                if isinstance(node.op, ast.Not):
                    return Value(tags=value.tags, label=_OPPOSITE.get(value.label, value.label))
                number = value.number()
                if isinstance(node.op, ast.USub) and number is not None:
                    return Value("number", const=-number)
                return Value(value.kind, value.tags, root=value.root, made=value.made)
            case ast.BoolOp():
                values = [self.value(one, frame) for one in node.values]
                labels = {one.label for one in values if one.label}
                label = (
                    "" if not labels else labels.pop() if len(labels) == 1 and isinstance(node.op, ast.And) else "some"
                )
                if isinstance(node.op, ast.Or) and any(one.kind in ("model", "loader", "sampler") for one in values):
                    return values[0] if values[0].kind else values[-1]
                return Value(tags=_union(values), label=label)
            case ast.Compare():
                return self._compare(node, frame)
            case ast.IfExp():
                test = self.value(node.test, frame)
                label = test.label or _guard(node.test)
                kept = self.guards
                self.guards = (*kept, Guard(node.test, label, test.equals, test, len(self.loops)))
                one = self.value(node.body, frame)
                self.guards = (*kept, Guard(node.test, _OPPOSITE.get(label, label), "", test, len(self.loops)))
                other = self.value(node.orelse, frame)
                self.guards = kept
                result = joined(one, other)
                if test.tags:
                    result = Value(
                        result.kind, result.tags | (test.tags & {"rank"}), result.name, items=result.items,
                        attrs=result.attrs, root=result.root, wrap=result.wrap, made=result.made, element=result.element,
                    )  # fmt: skip
                return result
            case ast.Tuple() | ast.List() | ast.Set():
                items = [self.value(one, frame) for one in node.elts]
                flat: list[Value] = []
                for one, value in zip(node.elts, items, strict=True):
                    flat += (value.items or [value]) if isinstance(one, ast.Starred) else [value]
                kind = "list" if isinstance(node, ast.List) else "tuple"
                return Value(kind, _union(flat), items=flat)
            case ast.Starred():
                return self.value(node.value, frame)
            case ast.Dict():
                result = Value("dict")
                for key, one in zip(node.keys, node.values, strict=True):
                    value = self.value(one, frame)
                    name = self.value(key, frame).const if key is not None else None
                    if isinstance(name, str):
                        result.attrs[name] = value
                    elif key is None:
                        result.attrs.update(value.attrs)
                    result.tags |= value.tags
                result.node = node
                return result
            case ast.Subscript():
                return self._subscript(node, frame)
            case ast.Slice():
                parts = [self.value(one, frame) for one in (node.lower, node.upper, node.step) if one is not None]
                return Value("slice", _union(parts), items=parts)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node, frame)
            case ast.JoinedStr():
                parts = [self.value(one.value, frame) for one in node.values if isinstance(one, ast.FormattedValue)]
                return Value("text", _union(parts) - {"graph"})
            case ast.NamedExpr():
                value = self.value(node.value, frame)
                self._assign(node.target, value, frame, node)
                return value
            case ast.Await():
                return self.value(node.value, frame)
            case ast.Yield():
                value = self.value(node.value, frame)
                frame.yielded.append(value)
                return Value()
            case ast.YieldFrom():
                value = self.value(node.value, frame)
                frame.yielded.append(self._element(value))
                return Value()
            case ast.Lambda():
                return Value("lambda", node=node, module=frame.module, attrs=frame.names)
            case _:
                return Value()

    def _name(self, name: str, frame: _Frame) -> Value:
        if name in frame.names:
            return frame.names[name]
        names = self.globals.get(frame.module.source, {})
        if name in names:
            return names[name]
        if name in frame.module.imports:
            value = self._named(frame.module.imports[name], frame.module)
            names[name] = value
            return value
        value = Value(tags=_hint(name), name=name)
        names[name] = value
        return value

    def _attribute(self, node: ast.Attribute, frame: _Frame) -> Value:
        of = self.value(node.value, frame)
        name = node.attr
        if name in of.attrs and of.kind not in ("function", "lambda"):
            found = of.attrs[name]
            return found if name != "grad" else Value(found.kind, found.tags | {"grad"}, root=of.root)
        if of.kind == "import":
            return Value("import", name=f"{of.name}.{name}", tags=_hint(name) if of.name == "args" else frozenset())
        if of.kind == "file" and of.module is not None:
            names = self._started(of.module)
            if name in names:
                return names[name]
        if of.kind == "model":
            if name == "module" and of.wrap:
                return Value("model", of.tags, root=of.base, attrs={"outer": of}, made=of.made)
            if name in ("training", "device", "dtype", "config"):
                return Value()
            part = Value("model", of.tags, root=of.base, attrs={"parent": of}, name=name)
            if name in ("weight", "bias", "data"):
                part.kind = "params"
            return part
        if of.kind in ("instance", "model") and (method := self._method(of, name)):
            return method
        if name == "grad":
            return Value("tensor", of.tags | {"grad"}, root=of.root, attrs={"of": of})
        if name in ("data", "shape", "dtype", "device", "ndim"):
            return Value(of.kind if name == "data" else "", of.tags - {"graph"}, root=of.root, attrs={"of": of})
        hint = _hint(name)
        label = "first" if FIRST.search(name) else ""
        return Value("", of.tags | hint, name=f".{name}", root=of.root, made=of.made, label=label, attrs={})

    def _method(self, of: Value, name: str) -> Value | None:
        node, module = of.node, of.module
        for _ in range(6):
            if not isinstance(node, ast.ClassDef) or module is None:
                return None
            for child in node.body:
                if isinstance(child, Function) and child.name == name:
                    return Value("method", name=name, node=child, module=module, element=of)
            above = next(
                (found for base in node.bases if (found := self.program.class_of(_dotted(base), module))), None
            )
            if above is None:
                return None
            module, node = above
        return None

    def _subscript(self, node: ast.Subscript, frame: _Frame) -> Value:
        of, key = self.value(node.value, frame), self.value(node.slice, frame)
        if of.kind == "import" and of.name.endswith("environ") and isinstance(key.const, str):
            return Value(tags=_variable(key.const), name=f"environ[{key.const}]")
        if isinstance(key.const, str) and key.const in of.attrs:
            return of.attrs[key.const]
        if isinstance(key.const, int) and of.items is not None and -len(of.items) <= key.const < len(of.items):
            return of.items[key.const]
        hint = _hint(key.const) if isinstance(key.const, str) else frozenset()
        kind = of.kind if of.kind in ("model", "params", "loader", "batch", "mesh", "tensor") else ""
        if of.kind == "model":
            return Value("model", of.tags, root=of.base, attrs={"parent": of}, name="[]")
        result = Value(kind, of.tags | key.tags | hint, root=of.root, made=of.made, attrs={"sliced": of, "by": key})
        if isinstance(key.const, str):
            result.name = f"[{key.const}]"
        if key.has("rank", "random"):
            self._op("slice", "", node, frame, (key,), {}, of).result = result
        return result

    def _compare(self, node: ast.Compare, frame: _Frame) -> Value:
        values = [self.value(one, frame) for one in (node.left, *node.comparators)]
        tags = _union(values) - {"graph"}
        if len(values) == 2:
            for left, right, text in ((values[0], values[1], node.comparators[0]), (values[1], values[0], node.left)):
                if _is_rank(left):
                    label, equals = _compared(node.ops[0], right, text)
                    return Value(tags=tags, label=label, equals=equals)
        return Value(tags=tags)

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, frame: _Frame
    ) -> Value:
        inner = _Frame(frame.module, dict(frame.names), frame.returned, frame.yielded)
        kept = self.loops
        overs = []
        for generator in node.generators:
            over = self.value(generator.iter, inner)
            overs.append(over)
            self.loops = (*self.loops, Loop(node, over, text_of(generator.target)))
            self._assign(generator.target, self._element(over), inner, node)
            for test in generator.ifs:
                self.value(test, inner)
        if isinstance(node, ast.DictComp):
            self.value(node.key, inner)
            value = self.value(node.value, inner)
        else:
            value = self.value(node.elt, inner)
        self.loops = kept
        kind = "params" if value.kind == "params" and "grad" not in value.tags else "list"
        tags = value.tags | (_union(overs) & {"rank", "world"})
        return Value(kind, tags, root=value.root, element=value, node=node)

    # -- calls -----------------------------------------------------------------------------------------------------

    def _op(
        self, kind: str, name: str, node: ast.AST, frame: _Frame, args: Sequence[Value], keywords: dict[str, Value],
        of: Value | None = None,
    ) -> Op:  # fmt: skip
        op = Op(
            kind, name, node, frame.module, len(self.ops), tuple(args), keywords, self.loops, self.guards, self.contexts,
            self.stack, of,
        )  # fmt: skip
        self.ops.append(op)
        return op

    def _call(self, node: ast.Call, frame: _Frame) -> Value:
        of: Value | None = None
        if isinstance(node.func, ast.Attribute):
            of = self.value(node.func.value, frame)
            callee = self._callee(node.func, of, frame)
        else:
            callee = self.value(node.func, frame)
        args: list[Value] = []
        starred = False
        for argument in node.args:
            value = self.value(argument, frame)
            if isinstance(argument, ast.Starred):
                starred = starred or value.items is None
                args += value.items if value.items is not None else [value]
            else:
                args.append(value)
        keywords: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, frame)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            else:
                keywords.update({key: one for key, one in value.attrs.items() if isinstance(key, str)})
                keywords["**"] = value
        if of is not None and callee.kind in ("", "import") and of.kind != "import":
            op = self._op(
                "call",
                f".{node.func.attr}" if isinstance(node.func, ast.Attribute) else "",
                node,
                frame,
                args,
                keywords,
                of,
            )
        else:
            op = self._op(
                "call",
                callee.name or "?",
                node,
                frame,
                args,
                keywords,
                of if callee.kind in ("import", "file") else callee,
            )
        op.starred = starred
        result = self._result(op, callee, args, keywords, frame, node)
        if result.made is None:
            result.made = op
        op.result = result
        return result

    def _callee(self, func: ast.Attribute, of: Value, frame: _Frame) -> Value:
        if of.kind in ("instance", "model") and of.bases is not None:
            method = self._method(of, func.attr)
            if method is not None:
                return method
        if of.kind == "import":
            return self._named(f"{of.name}.{func.attr}", frame.module)
        if of.kind == "file" and of.module is not None:
            found = self._started(of.module).get(func.attr)
            return found or Value("import", name=f"{of.name}.{func.attr}")
        held = of.attrs.get(func.attr)
        if held is not None and of.kind not in ("function", "lambda") and (held.kind or held.node is not None):
            return held
        if of.kind == "model" and func.attr not in _MODEL_METHODS and not of.bases and func.attr not in _SAME:
            part = Value(
                "model",
                of.tags,
                root=of.base,
                attrs={"parent": of, **({"outer": of} if func.attr == "module" else {})},
                name=func.attr,
            )
            return part if func.attr == "module" else Value()
        return Value()

    def _result(
        self, op: Op, callee: Value, args: list[Value], keywords: dict[str, Value], frame: _Frame, node: ast.Call
    ) -> Value:  # fmt: skip
        every = [*args, *keywords.values()]
        if callee.kind in ("function", "method"):
            given = ([callee.element] if callee.kind == "method" and callee.element is not None else []) + args
            return self._run(callee, tuple(given), keywords, node)
        if callee.kind == "lambda":
            return Value(tags=_union(every))
        if callee.kind == "class":
            return self._instance(callee, tuple(args), keywords, node)
        if callee.kind == "model":
            return self._forward(op, callee, every)
        for one in every:
            if (
                one.kind in ("function", "method")
                and one.node is not None
                and op.last not in ("partial", "wraps", "getattr")
            ) and one.node not in self.covered:
                self._run(one, (one.element,) if one.kind == "method" and one.element else (), {}, node)
        return self._library(op, args, keywords, every)

    def _forward(self, op: Op, model: Value, every: list[Value]) -> Value:
        op.name = "forward"
        op.of = model
        tags = (_union(every) - _SCALES) | {"output"}
        if not op.no_grad:
            tags |= {"graph"}
        return Value("tensor", frozenset(tag for tag in tags if not tag.startswith("part:")), root=model.base)

    def _run(self, callee: Value, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.AST | None) -> Value:
        function, module = callee.node, callee.module
        if not isinstance(function, Function) or module is None:
            return Value(tags=_union(args))
        count = self.visits.get(function, 0)
        if function in self.running or len(self.running) > _DEEPEST or count > 12 or len(self.ops) > _MOST:
            return Value(tags=_union([*args, *keywords.values()]) - {"graph"})
        self.visits[function] = count + 1
        self.covered.add(function)
        self._started(module)
        names: dict[str, Value] = dict(callee.attrs) if callee.kind == "function" and callee.attrs else {}
        frame = _Frame(module, names, guards=len(self.guards))
        self._bind(function, args, keywords, frame)
        kept = self.loops, self.guards, self.contexts, self.stack
        self.stack = (*self.stack, function.name)
        for decorator in function.decorator_list:
            text = text_of(decorator)
            if re.search(r"no_grad|inference_mode", text):
                self.contexts = (*self.contexts, Context("no_grad", None, True, Value()))
            elif re.search(r"rank_zero|main_process", text):
                self.guards = (*self.guards, Guard(decorator, "first", "0", Value(), len(self.loops)))
        self.running.append(function)
        self._body(function.body, frame)
        self.running.pop()
        self.loops, self.guards, self.contexts, self.stack = kept
        if frame.yielded:
            return Value("iter", _union(frame.yielded), element=_all(frame.yielded))
        return _all(frame.returned) if frame.returned else Value(const=None)

    def _bind(self, function: Function, args: tuple[Value, ...], keywords: dict[str, Value], frame: _Frame) -> None:
        arguments = function.args
        names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
        for name, value in zip(names, args, strict=False):
            frame.names[name] = value
        if arguments.vararg is not None:
            rest = list(args[len(names) :])
            frame.names[arguments.vararg.arg] = Value("tuple", _union(rest), items=rest)
        defaults = dict(zip(names[len(names) - len(arguments.defaults) :], arguments.defaults, strict=True))
        only = {one.arg: default for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)}
        annotated = {
            one.arg: one.annotation for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        }
        for name in (*names, *only):
            if name in keywords:
                frame.names[name] = keywords[name]
            elif name not in frame.names or (name in names[len(args) :]):
                default = defaults.get(name) or only.get(name)
                if default is not None and not (_hint(name) and node_is_number(default)):
                    frame.names[name] = self.value(default, frame)
                else:
                    frame.names[name] = _parameter(name, annotated.get(name))
        if arguments.kwarg is not None:
            rest_of = {key: value for key, value in keywords.items() if key not in names and key not in only}
            frame.names[arguments.kwarg.arg] = Value("dict", _union(list(rest_of.values())), attrs=rest_of)

    def _instance(self, cls: Value, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.AST) -> Value:
        bases = cls.bases
        kind = "instance"
        if bases & {"Module", "LightningModule", "Model", "PreTrainedModel", "Sequential", "GPT2LMHeadModel"}:
            kind = "model"
        elif bases & {"Dataset", "IterableDataset", "TensorDataset", "ImageFolder"}:
            kind = "dataset"
        tags = _union([*args, *keywords.values()])
        value = Value(kind, tags, name=cls.name, node=cls.node, module=cls.module, bases=bases | {cls.name})
        init = self._method(value, "__init__")
        if init is not None:
            self._run(
                Value("function", name="__init__", node=init.node, module=init.module), (value, *args), keywords, node
            )
        else:
            self._fields(value, args, keywords)
        if kind == "model":
            value.tags = frozenset(value.tags | _parts_of_class(cls.node))
        return value

    def _fields(self, value: Value, args: tuple[Value, ...], keywords: dict[str, Value]) -> None:
        """A dataclass."""
        if isinstance(value.node, ast.ClassDef):
            names = [
                child.target.id
                for child in value.node.body
                if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name)
            ]
            value.attrs.update(zip(names, args, strict=False))
            value.attrs.update({key: one for key, one in keywords.items() if key in names})

    # -- what libraries return -------------------------------------------------------------------------------------

    def _library(self, op: Op, args: list[Value], keywords: dict[str, Value], every: list[Value]) -> Value:
        name, last, of = op.name, op.last, op.of
        tags = _flowing([*every, *([of] if of is not None and op.name.startswith(".") else [])])
        first = args[0] if args else next(iter(keywords.values()), None)
        if of is not None and of.kind == "mesh" and last in ("get_local_rank", "get_rank", "size"):
            return Value("number", frozenset({"world" if last == "size" else "rank", "mesh"}), made=op)
        if (
            last in _RANK_CALLS
            or name.endswith(("hvd.rank", "hvd.local_rank", "torch.rank"))
            or name
            in (
                "horovod.torch.local_rank",
                "horovod.tensorflow.rank",
                "horovod.tensorflow.local_rank",
                "horovod.tensorflow.keras.rank",
                "horovod.keras.rank",
            )
        ):
            return Value("number", frozenset({"rank"}))
        if last in _WORLD_CALLS or re.fullmatch(r"(?:horovod\.[\w.]+|hvd)\.size", name):
            return Value("number", frozenset({"world"}))
        if last in ("getenv", "get") and isinstance(first, Value) and isinstance(first.const, str):
            if "environ" in (of.name if of else "") or "environ" in name or last == "getenv":
                return Value(tags=_variable(first.const), name=f"environ[{first.const}]")
            if of is not None and first.const in of.attrs:
                return of.attrs[first.const]
            return Value(tags=tags | _hint(first.const), name=f"[{first.const}]", made=of.made if of else None)
        if last in ("int", "abs", "round") and "." not in name and first is not None:
            return Value(
                "number",
                first.tags - {"graph"},
                const=first.const if first.number() is not None else _NOTHING,
                label=first.label,
            )
        if last in WRAPPERS or last == "DistributedDataParallelCPU":
            return self._wrapped(op, WRAPPERS.get(last, "ddp"), op.argument("module", 0) or op.argument("model", 0))
        if last == "initialize" and ("deepspeed" in name or "model_parameters" in keywords):
            model = op.argument("model", 1) or Value()
            engine = self._wrapped(op, "deepspeed", model)
            return Value(
                "tuple",
                items=[
                    engine,
                    Value("optimizer", wrap="deepspeed", root=model.base, made=op),
                    Value("loader", frozenset({"shard", "prepared"}), made=op),
                    Value("scheduler", made=op),
                ],
            )
        if last in (
            "prepare",
            "setup",
            "boost",
            "setup_module",
            "setup_dataloaders",
            "setup_optimizers",
            "prepare_model",
            "prepare_data_loader",
            "prepare_dataloader",
        ) and (every or op.name.startswith(".")):
            return self._prepared(op, args, keywords)
        if last == "DistributedOptimizer":
            return Value(
                "optimizer",
                frozenset({"reduced"}),
                wrap="horovod",
                root=first.root if first else None,
                attrs=first.attrs if first else {},
                made=op,
            )
        if _is_optimizer(name, last):
            params = op.argument("params", 0) or Value()
            root = params_root(params)
            return Value(
                "optimizer",
                tags & {"world", "/world", "*world"},
                name=last,
                root=root,
                attrs={"params": params},
                made=op,
            )
        if _SCHEDULER.search(last) and (any(one.kind == "optimizer" for one in every) or "scheduler" in name):
            return Value(
                "scheduler",
                tags,
                name=last,
                attrs={"optimizer": next((o for o in every if o.kind == "optimizer"), Value())},
                made=op,
            )
        if last in (
            "DistributedSampler",
            "DistributedLengthGroupedSampler",
            "DistributedBatchSampler",
            "DistributedSamplerWrapper",
        ):
            return Value("sampler", tags | {"shard"}, name=last, made=op)
        if last.endswith("Sampler") and last[0].isupper():
            return Value("sampler", tags, name=last, made=op)
        if last in ("DataLoader", "StatefulDataLoader", "DataLoader2", "WebLoader", "MultiEpochsDataLoader"):
            held = {
                key: value
                for key, value in (
                    ("dataset", op.argument("dataset", 0)),
                    ("sampler", op.argument("sampler", 3)),
                    ("batch_sampler", op.argument("batch_sampler", 4)),
                )
                if value is not None
            }
            return Value("loader", _union(list(held.values())), attrs=held, made=op)
        if last in (
            "random_split",
            "Subset",
            "TensorDataset",
            "ConcatDataset",
            "ImageFolder",
            "split_dataset_by_node",
            "MNIST",
            "CIFAR10",
            "FashionMNIST",
            "load_dataset",
            "FakeData",
        ):
            extra = frozenset({"shard", "rank"}) if last == "split_dataset_by_node" else frozenset()
            value = Value(
                "dataset", tags | extra, name=last, made=op, attrs={"tensors": Value("tuple", tags, items=list(args))}
            )
            return Value("tuple", value.tags, items=[value, value, value], made=op) if last == "random_split" else value
        if last == "shard" and of is not None:
            return Value(of.kind or "dataset", tags | {"shard"}, made=op)
        if last in ("Accelerator", "Fabric"):
            return Value("accelerator", name=last, made=op)
        if last in {"GradScaler", "ShardedGradScaler"}:
            return Value("scaler", made=op)
        if last == "deepcopy" and first is not None:
            if first.kind == "model":
                return Value(
                    "model",
                    first.tags,
                    name="deepcopy",
                    attrs={"copied": first},
                    node=first.node,
                    module=first.module,
                    bases=first.bases,
                    made=op,
                )
            return first
        if last == "AveragedModel":
            return Value("model", first.tags if first else frozenset(), name="average", made=op)
        if last in ("init_device_mesh", "DeviceMesh"):
            return Value("mesh", tags, made=op)
        if last in ("parallelize_module", "distribute_module") and first is not None:
            first.base.kind = first.kind = "model"
            first.base.tags |= {"tp"}
            first.tags |= {"tp"}
            return first
        if last in ("PipelineStage", "build_stage"):
            return Value("stage", made=op)
        if of is not None and name.startswith("."):
            return self._of_value(op, of, last, args, tags)
        if last in _SAME and first is not None and first.kind == "model":
            if last == "convert_sync_batchnorm":
                return Value(
                    "model",
                    first.tags | {"part:SyncBatchNorm"},
                    root=first.root or first,
                    wrap=first.wrap,
                    node=first.node,
                    module=first.module,
                    bases=first.bases,
                )
            return first
        if _is_layer(name, last):
            if last.endswith("Loss"):
                return Value("criterion", frozenset(), name=last, made=op)
            return Value(
                "model",
                frozenset(tag for tag in tags if tag.startswith("part:")) | {f"part:{last}"},
                name=name,
                made=op,
            )
        if last in ("Sequential", "ModuleList") and name.startswith(("nn.", "torch.")):
            return Value("model", tags, name=name, made=op)
        if "models." in name and (name.startswith(("torchvision", "timm")) or last in ("create_model", "get_model")):
            return Value("model", frozenset({"part:library"}), name=name, made=op)
        if last in (
            "from_pretrained",
            "from_config",
            "create_model",
            "get_peft_model",
            "resnet18",
            "resnet50",
            "resnet34",
        ):
            if re.search(r"(?i)tokeni|config(?!\b)|processor", name):
                return Value(name=name, made=op)
            return Value("model", frozenset({"part:library"}), name=name, made=op)
        if last in _SEEDS:
            return self._seeded(op, every)
        if last in RANDOM and (name.startswith(("torch", "np", "numpy", "random", "tf")) or "generator" in keywords):
            drawn = self._drawn(op, keywords)
            if last == "shuffle" and first is not None:
                first.tags |= drawn
            return Value("tensor", drawn, made=op)
        if last in _THROUGH and first is not None:
            return (
                first
                if first.kind or first.items is not None or first.element is not None
                else Value(first.kind, tags, made=first.made)
            )
        if last == "enumerate" and first is not None:
            number = Value("number", frozenset({"count"}), name="step")
            return Value(
                "iter", tags, element=Value("tuple", tags, items=[number, self._element(first)]), attrs={"over": first}
            )
        if last == "zip":
            elements = [self._element(one) for one in args]
            return Value(
                "iter",
                tags,
                element=Value("tuple", tags, items=elements),
                attrs={"over": next((one for one in args if one.kind == "loader"), args[0] if args else Value())},
            )
        if last == "range":
            return Value(
                "range",
                tags - {"graph"},
                items=None,
                attrs={
                    "stop": args[-1] if len(args) == 1 else args[1] if len(args) > 1 else Value(),
                    "start": args[0] if len(args) > 1 else Value("number", const=0),
                },
                made=op,
                element=Value("number", (tags - {"graph"}) | {"count"}),
            )
        if last == "next" and first is not None:
            return self._element(first)
        if last == "map" and len(args) > 1:
            return Value("iter", _union(args[1:]), element=Value(tags=_union(args[1:])))
        if last in ("len",) and first is not None:
            extra = {"len"} | ({"len:prepared"} if first.has("prepared") else set())
            return Value("number", (first.tags - {"graph"}) | extra, attrs={"of": first})
        if last == "new_group":
            return Value("group", tags, made=op, attrs={"ranks": first or Value()})
        if last in ("parse_args", "parse_known_args"):
            return Value("args", made=op)
        if last == "Namespace":
            return Value("args", attrs=dict(keywords), made=op)
        if last == "dict":
            return Value("dict", tags, attrs=dict(keywords), made=op)
        if last == "partial" and first is not None:
            return Value(first.kind, first.tags, first.name, node=first.node, module=first.module, made=op)
        if last == "load" and name in ("torch.load",):
            return Value("dict", (tags & {"rank"}) | {"loaded"}, name="torch.load", made=op)
        kept = tags - {"graph"} if last in _WITHOUT_GRAPH or op.no_grad else tags
        root = next((one.root for one in every if "graph" in one.tags and one.root), None)
        kind = next((one.kind for one in every if one.kind == "params"), "")
        if kind and last not in ("filter", "list", "tuple", "chain", "sorted", "dict", "set", "reversed"):
            kind = ""
        if kind:
            root = params_root(Value(items=every))
        return Value(
            kind,
            frozenset(tag for tag in kept if not tag.startswith("part:") or kind),
            root=root,
            made=op,
            name="" if last[:1].islower() else last,
        )

    def _of_value(self, op: Op, of: Value, last: str, args: list[Value], tags: frozenset[str]) -> Value:
        """A method of a value."""
        if of.kind == "criterion" or (False):
            return Value("tensor", tags, made=op)
        if last in ("parameters", "named_parameters", "trainable_parameters", "get_params") and of.kind in (
            "model",
            "",
            "instance",
        ):
            if of.kind == "":
                of.kind = "model"
            values = Value("params", of.tags, root=of.base, attrs={"model": of}, made=op)
            if last == "named_parameters":
                each = Value("params", of.tags | {"element"}, root=of.base, attrs={"of": values})
                return Value(
                    "params", of.tags, root=of.base, made=op, element=Value("tuple", items=[Value("text"), each])
                )
            return values
        if of.kind == "model" and last in ("children", "modules", "named_modules", "named_children"):
            part = Value("model", of.tags, root=of.base, attrs={"parent": of})
            return Value(
                "iter", of.tags, element=part if "named" not in last else Value("tuple", items=[Value("text"), part])
            )
        if last in _SAME and of.kind in ("model", "optimizer", "criterion"):
            return of
        if last in ("unwrap_model", "unwrap"):
            model = args[0] if args else Value()
            return Value("model", model.tags, root=model.base, attrs={"outer": model})
        if last == "state_dict":
            return Value("state", of.tags & {"rank"}, attrs={"of": of}, made=op)
        if last == "scale" and of.kind == "scaler" and args:
            return Value("tensor", args[0].tags | {"scaled"}, root=args[0].root, made=op)
        if last in ("append", "extend", "add", "update", "insert", "setdefault"):
            value = args[-1] if args else Value()
            of.tags |= frozenset(
                tag
                for tag in value.tags
                if tag.startswith(("part:", "graph", "rank", "shard", "output", "unseeded", "random"))
            )
            if last == "append" and of.element is None and of.items is not None and len(of.items) < 8:
                of.items.append(value)
            if last == "update":
                of.attrs.update(value.attrs)
            return Value()
        if last == "get_world_size" or (last == "size" and not args and WORLD.search(of.name or "")):
            return Value("number", frozenset({"world"}))
        if last in _SEEDS:
            return self._seeded(op, list(op.args))
        if last in RANDOM and (of.kind in ("generator",) or of.name.startswith(("np", "numpy", "random"))):
            if last == "shuffle" and args:
                args[0].tags |= of.tags | {"random"}
            return Value("tensor", of.tags | tags | {"random"}, made=op)
        if last in RANDOM and last.endswith("_"):
            drawn = self._drawn(op, op.keywords)
            of.tags |= drawn
            return of
        if last in ("items", "values", "keys") and of.kind in ("dict", "state", ""):
            return Value("iter", of.tags, element=None, made=of.made, attrs={"of": of})
        if last in ("div", "div_", "true_divide", "divide") and args:
            result = _combined(ast.Div(), of, args[0])
            result.made = op
            if last == "div_":
                of.tags = result.tags
                return of
            return result
        if last in ("mul", "mul_", "multiply") and args:
            result = _combined(ast.Mult(), of, args[0])
            result.made = op
            if last == "mul_":
                of.tags = result.tags
                return of
            return result
        if last in _WITHOUT_GRAPH or op.no_grad:
            return Value(
                "number"
                if last in ("item", "numel", "size")
                else of.kind
                if of.kind in ("tensor", "batch", "params")
                else "",
                tags - {"graph"},
                root=of.root,
                made=op,
                attrs={"of": of},
            )
        if last in ("backward", "step", "zero_grad", "load_state_dict"):
            return Value()
        if of.kind == "model" and last not in _MODEL_METHODS and args and not _ASKED.match(last):
            return self._forward(
                op, Value("model", of.tags, root=of.base, attrs=of.attrs, wrap=of.wrap, name=last), list(op.args)
            )
        kind = of.kind if of.kind in ("tensor", "params", "batch", "dataset") else ""
        return Value(
            kind,
            tags if of.kind != "model" else frozenset(tag for tag in tags if not tag.startswith("part:")),
            root=of.root or next((one.root for one in args if "graph" in one.tags), None),
            made=op,
            attrs={"of": of},
        )

    def _wrapped(self, op: Op, wrap: str, inner: Value | None) -> Value:
        inner = inner or Value()
        if inner.kind in ("", "class"):
            inner.kind = "model"
        if wrap == "fsdp2":
            inner.wrap = inner.base.wrap = "fsdp2"
            inner.tags |= {"wrapped"}
            inner.attrs["sharded"] = Value(made=op)
            return inner
        inner.base.attrs.setdefault("wrapped", Value(made=op))
        return Value(
            "model", inner.tags, name=inner.name, root=inner.base, wrap=wrap, made=op, attrs={"inner": inner},
            node=inner.node, module=inner.module, bases=inner.bases,
        )  # fmt: skip

    def _prepared(self, op: Op, args: list[Value], keywords: dict[str, Value]) -> Value:
        of = op.of
        wrap = (
            "fabric"
            if of is not None and of.name == "Fabric"
            else "ray"
            if "ray" in op.name or "train.torch" in op.name
            else "accelerate"
        )
        if not args and not keywords:
            return Value(made=op)
        items = []
        for one in [*args, *keywords.values()]:
            if one.kind == "model":
                items.append(self._wrapped(op, wrap, one))
            elif one.kind in ("loader", "dataset") or op.last.startswith(("prepare_data", "setup_dataloaders")):
                items.append(Value("loader", one.tags | {"shard", "prepared"}, attrs=one.attrs, made=op, root=one))
            elif one.kind == "optimizer":
                items.append(
                    Value("optimizer", one.tags | {"prepared"}, one.name, attrs=one.attrs, root=one.root, made=one.made)
                )
            else:
                items.append(
                    Value(one.kind, one.tags | {"prepared"}, one.name, attrs=one.attrs, root=one.root, made=op)
                )
        return items[0] if len(items) == 1 else Value("tuple", items=items, made=op)

    def _seeded(self, op: Op, every: list[Value]) -> Value:
        tags = _union(every) & {"rank", "world", "unseeded", "epoch", "count"}
        of = op.of
        if op.name.startswith(".") and of is not None and of.made is not None and of.made.last == "Generator":
            of.kind = "generator"
            of.tags |= tags | {"seeded"}
            return of
        if op.last in ("default_rng", "RandomState"):
            return Value("generator", tags | ({"seeded"} if every else {"unseeded"}), name=op.name, made=op)
        self.seeds.append(op)
        return Value()

    def _drawn(self, op: Op, keywords: dict[str, Value]) -> frozenset[str]:
        """By which generator: one given, or the global one as it was last seeded."""
        tags = _union([*op.args, *keywords.values()]) - {"graph"}
        if "generator" in keywords:
            return tags | {"random"}
        library = (
            "numpy" if op.name.startswith(("np", "numpy")) else "random" if op.name.startswith("random") else "torch"
        )
        seeds = [
            one
            for one in self.seeds
            if one.last in ("set_seed", "seed_everything")
            or (
                (library == "torch") == (one.last.startswith("manual_seed"))
                and (library != "random" or one.name.startswith("random"))
            )
        ]
        if not seeds:
            return tags | {"random", "unseeded"}
        given = _union([*seeds[-1].args, *seeds[-1].keywords.values()])
        return tags | {"random"} | (given & {"rank"})


_OPPOSITE = {"first": "others", "others": "first"}
_MODEL_METHODS = frozenset(
    [
        "parameters",
        "named_parameters",
        "children",
        "modules",
        "named_modules",
        "named_children",
        "state_dict",
        "load_state_dict",
        "no_sync",
        "register_comm_hook",
        "zero_grad",
        "step",
        "backward",
        "clip_grad_norm_",
        "save_checkpoint",
        "load_checkpoint",
        "buffers",
    ]
)

_ASKED = re.compile(
    r"get|set|num|count|estimate|generate|save|load|configure|print|log|register|add|named|push|init|fit|compile|summary|_"
)


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in text_of(node.test)


def _dotted(node: ast.AST) -> str:
    from paramedic.detect.program import dotted

    return dotted(node)


def _union(values: Sequence[Value]) -> frozenset[str]:
    tags: frozenset[str] = frozenset()
    for value in values:
        if value.tags:
            tags |= value.tags
    return tags


_SCALES = frozenset(("/n", "/world", "*world", "len", "mod", "count", "len:prepared"))


def _flowing(values: Sequence[Value]) -> frozenset[str]:
    """What a result depends on; how numbers beside a graph were scaled does not scale it."""
    tags: frozenset[str] = frozenset()
    graph = any("graph" in value.tags or "grad" in value.tags for value in values)
    for value in values:
        tags |= value.tags - _SCALES if graph and not value.has("graph", "grad") else value.tags
    return tags


def _parts(value: Value) -> frozenset[str]:
    return frozenset(tag for tag in value.tags if tag.startswith("part:"))


def _parts_of_class(node: ast.AST | None) -> set[str]:
    """Layers and calls that act in training only."""
    found = set()
    for child in ast.walk(node) if node is not None else ():
        if isinstance(child, ast.Call):
            name = text_of(child.func)
            if name in ("F.dropout", "nn.functional.dropout", "torch.nn.functional.dropout") and any(
                keyword.arg == "training" and "training" in text_of(keyword.value) for keyword in child.keywords
            ):
                found.add("part:Dropout")
    return found


def _by_rank(value: Value, test: Value) -> Value:
    """What is chosen by the rank depends on the rank."""
    if "rank" not in test.tags or value.has("rank") or value.kind in ("model", "optimizer", "scheduler", "function"):
        return value
    return Value(
        value.kind, value.tags | {"rank"}, value.name, items=value.items, attrs=value.attrs, root=value.root, wrap=value.wrap,
        made=value.made, node=value.node, module=value.module, bases=value.bases, element=value.element,
    )  # fmt: skip


def joined(one: Value, other: Value) -> Value:
    """Either of two values; what is known of both is kept."""
    if one is other or (other.known and other.const is None):
        return one
    if one.known and one.const is None:
        return other
    better, worse = (one, other) if (one.kind and not other.kind) or one.wrap or not other.wrap else (other, one)
    if other.wrap and not one.wrap:
        better, worse = other, one
    items = better.items
    if one.items is not None and other.items is not None and len(one.items) == len(other.items):
        items = [joined(a, b) for a, b in zip(one.items, other.items, strict=True)]
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


def _all(values: Sequence[Value]) -> Value:
    result = values[0]
    for value in values[1:]:
        result = joined(value, result)
    return result


def _combined(op: ast.operator, left: Value, right: Value) -> Value:
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
        tags |= right.tags - _SCALES - {"world", "graph"}
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
        tags = _flowing([left, right])
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
    return result


def _hint(name: str) -> frozenset[str]:
    """What a bare name says, where nothing else is known."""
    if RANK.search(name):
        return frozenset({"rank"})
    if WORLD.search(name):
        return frozenset({"world"})
    return frozenset()


def _variable(name: str) -> frozenset[str]:
    return (
        frozenset({"rank"})
        if name in _RANK_VARIABLES
        else frozenset({"world"})
        if name in _WORLD_VARIABLES
        else frozenset()
    )


def _parameter(name: str, annotation: ast.expr | None) -> Value:
    """A parameter of a function that nobody in the project calls."""
    text = text_of(annotation)
    lower = name.lower()
    tags = _hint(name)
    if FIRST.search(name):
        return Value(tags=frozenset({"rank"}), label="first", name=name)
    if re.search(r"(?i)optim\w*$|^opt$", lower) or "Optimizer" in text:
        return Value("optimizer", name="parameter")
    if re.search(r"(?i)sched\w*$", lower):
        return Value("scheduler", name="parameter")
    if re.search(r"(?i)(?:^|_)(?:loader|dataloader)$|loader$", lower) or "DataLoader" in text:
        return Value("loader", name="parameter", tags=frozenset({"shard", "parameter"}))
    if re.search(r"(?i)^(?:model|net|network|module|ddp_model|fsdp_model|wrapped)$", lower) or "Module" in text:
        return Value("model", name="parameter", tags=frozenset({"parameter"}))
    if lower == "scaler":
        return Value("scaler", name="parameter")
    if lower == "accelerator":
        return Value("accelerator", name="Accelerator")
    if lower in ("criterion", "loss_fn"):
        return Value("criterion", name="parameter")
    return Value(tags=tags, name=name)


def _is_rank(value: Value) -> bool:
    """The rank itself, or the rank modulo something."""
    if not value.has("rank") or not value.tags <= {"rank", "world", "mesh", "mod", "parameter"} or value.known:
        return False
    op = value.attrs.get("op")
    return op is None or op.name == "Mod"


def node_is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant | ast.UnaryOp)


def _guard(test: ast.expr) -> str:
    """By names alone."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _guard(test.operand)
        return _OPPOSITE.get(inner, inner)
    if isinstance(test, ast.Call):
        return _guard(test.func)
    if isinstance(test, ast.Name | ast.Attribute):
        name = test.id if isinstance(test, ast.Name) else test.attr
        return "first" if FIRST.search(name) else "others" if RANK.search(name) else ""
    return ""


def _compared(op: ast.cmpop, right: Value, node: ast.expr) -> tuple[str, str]:
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


def _leaves(node: ast.stmt) -> bool:
    return isinstance(node, ast.Return | ast.Continue | ast.Raise | ast.Break) or (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and text_of(node.value.func) in ("exit", "sys.exit")
    )


def _is_optimizer(name: str, last: str) -> bool:
    if ".lr_scheduler" in name:
        return False
    return last in _OPTIMIZERS or (name.startswith("torch.optim.") and last[:1].isupper() and "swa" not in name)


def _is_layer(name: str, last: str) -> bool:
    if not last[:1].isupper():
        return False
    if name.startswith(("torch.nn.parallel", "torch.nn.utils", "torch.nn.init")):
        return False
    return (
        name.startswith(("torch.nn.", "nn."))
        or bool(_KERAS_LAYERS.search(name))
        or last in ("Sequential", "ModuleList")
    )


def params_root(value: Value, depth: int = 0) -> Value | None:
    """Whose parameters an optimizer gets, also in groups."""
    if value.kind == "params" and value.root is not None:
        return value.root
    if depth > 4:
        return None
    for one in (*(value.items or ()), *value.attrs.values(), *([value.element] if value.element else [])):
        found = params_root(one, depth + 1)
        if found is not None:
            return found
    return None


def flows(program: Program) -> list[Flow]:
    """Every training program of a project."""
    covered: set[ast.AST] = set()
    found = []
    for module in program.trainers:
        try:
            found.append(Flow(program, module, covered))
        except RecursionError:
            continue
    return found

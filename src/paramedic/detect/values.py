"""What is known of a value in a program, and what becomes of it in arithmetic, branches and names."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from paramedic.detect.program import Module, text_of
from paramedic.syntax import MOST_BITS

NOTHING: Any = object()
MOST = 8000
DEEPEST = 12
MOST_PARTS = 1_000
"""Parts of a value, those of its parts counted: a table of more is not followed item by item, or `x = (x, x)` would be
followed without end."""
_MOST_CHOSEN = 64
"""Parts that are put together one by one where branches meet: nobody chooses between larger tuples."""
RANK = re.compile(
    r"(?i)(?:^|(?<!per)(?<!each)(?<!lora)(?<!low)_)rank(?:_id)?$|^(?:get_|world_|global_|local_)?rank$|process_index$|^local_rank$|^procid$"
)
FIRST = re.compile(
    r"(?i)^is_(?:main|master|chief|primary|first|leader|root|rank)\w*$|^(?:chief|coordinator)$|^is_(?:global|local|world)_(?:process_)?zero$"
    r"|(?:main|master)_process$"
)
WORLD = re.compile(
    r"(?i)^(?:n_|num_|world_?|get_world_?)(?:size|ranks|processes|replicas|workers_total)?$|world_?size$|num_replicas|num_processes$|^world$|^n_?ranks$"
)
_RANK_VARIABLES = {"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}
_WORLD_VARIABLES = {"WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}
RANK_CALLS = {
    "get_rank",
    "get_world_rank",
    "get_global_rank",
    "process_index",
    "get_local_rank",
    "get_node_local_rank",
}
WORLD_CALLS = {"get_world_size", "world_size", "num_processes"}
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
SEEDS = {"manual_seed", "manual_seed_all", "seed", "set_seed", "seed_everything", "default_rng", "RandomState"}
WITHOUT_GRAPH = frozenset(
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
SAME = frozenset(
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
THROUGH = frozenset(
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
        "LossScaleOptimizer",
        "Muon",
    ]
)
_KERAS_LAYERS = re.compile(r"(?:^|\.)(?:keras|layers)\.")
SCHEDULER = re.compile(r"LR$|Scheduler$|Restarts$|^get_\w*(?:schedule|scheduler)(?:_with_\w+)?$|^ReduceLROnPlateau$")
WRAPPERS = {
    "DistributedDataParallel": "ddp", "FullyShardedDataParallel": "fsdp", "fully_shard": "fsdp2",
    "prepare_model": "ray",
    "prepare_ddp_model": "ddp", "FSDP": "fsdp", "DDP": "ddp", "replicate": "ddp", "ShardedDataParallel": "fsdp",
    "LegacyDistributedDataParallel": "ddp", "wrap_model": "ddp",
}  # fmt: skip


UNPACKED = "*"
"""The name of one of several values that a call gave, where it is not known which."""


@dataclass(eq=False, slots=True)
class Value:
    """What is known of a value: its kind, what it depends on, and, for a model, what wraps it."""

    kind: str = ""
    tags: frozenset[str] = frozenset()
    name: str = ""
    const: Any = NOTHING
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
    size: int = field(default=1, init=False)
    """How many parts it has, itself counted."""

    def __post_init__(self) -> None:
        if self.items:
            self.size += sum(item.size for item in self.items)
            if self.size > MOST_PARTS:
                self.items, self.size = None, 1

    def append(self, value: Value) -> None:
        """One more item, where that stays a list of few."""
        if self.items is None or value.size > _MOST_CHOSEN:
            return
        self.items.append(value)
        self.size += value.size

    def hold(self, name: str, value: Value) -> None:
        """One more entry of a dict, where it stays one that can be followed."""
        if self.size + value.size <= MOST_PARTS or name in self.attrs:
            self.attrs[name] = value
            self.size += value.size

    @property
    def known(self) -> bool:
        return self.const is not NOTHING

    @property
    def base(self) -> Value:
        """The model below its wrappers."""
        return self.root or self

    def has(self, *tags: str) -> bool:
        return not self.tags.isdisjoint(tags)

    def number(self) -> float | None:
        return self.const if isinstance(self.const, int | float) and not isinstance(self.const, bool) else None


class Names(dict[str, Value]):
    """What names stand for. Of a part of the program what it changes is noted, so that nobody has to compare all."""

    __slots__ = ("_notes",)

    def __init__(self, known: Mapping[str, Value] | None = None) -> None:
        super().__init__(known or {})
        self._notes: list[dict[str, Value | None]] = []

    def __setitem__(self, name: str, value: Value) -> None:
        self._note(name)
        super().__setitem__(name, value)

    def drop(self, name: str) -> None:
        self._note(name)
        super().pop(name, None)

    def learn(self, name: str, value: Value) -> None:
        """Of a name that was never set: it is no change."""
        super().__setitem__(name, value)

    def begin(self) -> None:
        self._notes.append({})

    def changes(self) -> dict[str, Value | None]:
        """Since it began: what each name stood for before; None where it stood for nothing."""
        changed = self._notes.pop()
        if self._notes:
            for name, old in changed.items():
                self._notes[-1].setdefault(name, old)
        return changed

    def back(self, changed: Mapping[str, Value | None]) -> None:
        for name, old in changed.items():
            if old is None:
                super().pop(name, None)
            else:
                super().__setitem__(name, old)

    def _note(self, name: str) -> None:
        if self._notes:
            self._notes[-1].setdefault(name, self.get(name))


@dataclass(eq=False, frozen=True, slots=True)
class Loop:
    node: ast.AST
    over: Value
    target: str

    @property
    def through(self) -> Value:
        """What it goes through, below `enumerate` and `zip`."""
        return self.over.attrs.get("over", self.over)


@dataclass(eq=False, frozen=True, slots=True)
class Guard:
    """A condition. `label`: which ranks go on, where it speaks of ranks. `depth`: in how many loops it stands. `asks`:
    for an "argument" or the "environment", of which the program does not tell what it is."""

    node: ast.AST | None
    label: str
    equals: str
    value: Value
    depth: int = 0
    asks: str = ""

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
    last: str = field(init=False)
    """Of its name, the part behind the last dot."""

    def __post_init__(self) -> None:
        self.last = self.name.rsplit(".", 1)[-1]

    @property
    def line(self) -> int:
        return getattr(self.node, "lineno", 1)

    def argument(self, name: str, position: int | None = None) -> Value | None:
        if name in self.keywords:
            return self.keywords[name]
        if position is not None and position < len(self.args):
            return self.args[position]
        return None

    def written(self, which: str | int) -> ast.expr | None:
        """An argument of the call as it stands there, by its name or its place."""
        if not isinstance(self.node, ast.Call):
            return None
        if isinstance(which, int):
            return self.node.args[which] if which < len(self.node.args) else None
        return next((one.value for one in self.node.keywords if one.arg == which), None)

    def inside(self, *names: str) -> bool:
        return any(context.name in names for context in self.contexts)

    @property
    def no_grad(self) -> bool:
        return self.inside("no_grad", "inference_mode", "set_grad_enabled")

    @property
    def label(self) -> str:
        """Which ranks get here: the innermost condition that speaks of ranks."""
        return next((guard.label for guard in reversed(self.guards) if guard.label), "")

    @property
    def asks(self) -> str:
        """What decides whether it is done at all, where that is told from outside."""
        return next((guard.asks for guard in self.guards if guard.asks), "")

    def within(self, loop: Loop) -> bool:
        return any(one is loop for one in self.loops)


OPPOSITE = {"first": "others", "others": "first"}
MODEL_METHODS = frozenset(
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

ASKED = re.compile(
    r"get|set|num|count|estimate|generate|save|load|configure|print|log|register|add|named|push|init|fit|compile|summary|_"
)


def is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in text_of(node.test)


def union(values: Sequence[Value]) -> frozenset[str]:
    tags: frozenset[str] = frozenset()
    for value in values:
        if value.tags:
            tags |= value.tags
    return tags


SCALES = frozenset(("/n", "/world", "*world", "len", "mod", "count", "len:prepared"))


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


def parts_of(value: Value) -> frozenset[str]:
    return frozenset(tag for tag in value.tags if tag.startswith("part:"))


def parts_of_class(node: ast.AST | None) -> set[str]:
    """Layers and calls that act in training only."""
    for child in ast.walk(node) if node is not None else ():
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr == "dropout":
            name = text_of(child.func)
            if name in ("F.dropout", "nn.functional.dropout", "torch.nn.functional.dropout") and any(
                keyword.arg == "training" and "training" in text_of(keyword.value) for keyword in child.keywords
            ):
                return {"part:Dropout"}
    return set()


NEVER = "never"
"""A comparison whose answer is the same in every round."""


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


def by_rank(value: Value, test: Value) -> Value:
    """What is chosen by the rank depends on the rank."""
    if "rank" not in test.tags or value.has("rank") or value.kind in ("model", "optimizer", "scheduler", "function"):
        return value
    return Value(
        value.kind, value.tags | {"rank"}, value.name, attrs=value.attrs, root=value.root, wrap=value.wrap,
        items=[by_rank(item, test) for item in value.items] if value.items is not None and _is_small(value) else None,
        made=value.made, node=value.node, module=value.module, bases=value.bases, element=value.element,
    )  # fmt: skip


def _is_small(value: Value) -> bool:
    """Also where a list holds itself."""
    waiting = [value]
    for one in waiting:
        waiting += one.items or ()
        if len(waiting) > _MOST_CHOSEN:
            return False
    return True


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


@lru_cache(4096)
def hint_of(name: str) -> frozenset[str]:
    """What a bare name says, where nothing else is known."""
    if RANK.search(name):
        return frozenset({"rank"})
    if WORLD.search(name):
        return frozenset({"world"})
    return frozenset()


def variable(name: str) -> frozenset[str]:
    if name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"):
        return frozenset({"local size"})
    if name in ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"):
        return frozenset({"rank", "local"})
    return (
        frozenset({"rank"})
        if name in _RANK_VARIABLES
        else frozenset({"world"})
        if name in _WORLD_VARIABLES
        else frozenset()
    )


def parameter(name: str, annotation: ast.expr | None) -> Value:
    """A parameter of a function that nobody in the project calls."""
    text = text_of(annotation)
    lower = name.lower()
    tags = hint_of(name)
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


def is_rank(value: Value) -> bool:
    """The rank itself, or the rank modulo something."""
    if not value.has("rank") or not value.tags <= {"rank", "local", "world", "mesh", "mod", "parameter"} or value.known:
        return False
    op = value.attrs.get("op")
    return op is None or op.name == "Mod"


def node_is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant | ast.UnaryOp)


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


def leaves(node: ast.stmt) -> bool:
    return isinstance(node, ast.Return | ast.Continue | ast.Raise | ast.Break) or (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and text_of(node.value.func) in ("exit", "sys.exit")
    )


def is_optimizer(name: str, last: str) -> bool:
    if ".lr_scheduler" in name:
        return False
    return last in _OPTIMIZERS or (name.startswith("torch.optim.") and last[:1].isupper() and "swa" not in name)


def is_layer(name: str, last: str) -> bool:
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

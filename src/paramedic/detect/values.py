"""What is known of a value in a program, and of what the program does with it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paramedic.detect.program import Module

NOTHING: Any = object()
MOST = 8000
DEEPEST = 12
MOST_PARTS = 1_000
"""Parts of a value, those of its parts counted: a table of more is not followed item by item, or `x = (x, x)` would be
followed without end."""
MOST_CHOSEN = 64
"""Parts that are put together one by one where branches meet: nobody chooses between larger tuples."""
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
        if self.items is None or value.size > MOST_CHOSEN:
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


def parts_of(value: Value) -> frozenset[str]:
    return frozenset(tag for tag in value.tags if tag.startswith("part:"))

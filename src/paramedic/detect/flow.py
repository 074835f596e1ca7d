"""What a training program does, in order: values followed through names, functions, classes and files.

Nothing is executed. Every loop is gone through once, both branches of a condition are taken, and of each value it is
known what it depends on: the rank, the number of ranks, chance, the graph of the model, a shard of the data.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from paramedic.detect.arithmetic import by_rank, combined, joined
from paramedic.detect.conditions import NEVER, OPPOSITE, guard_of, is_main, leaves
from paramedic.detect.expressions import Expressions, Frame
from paramedic.detect.program import Function, Module, Program, text_of
from paramedic.detect.values import MOST, UNPACKED, Context, Guard, Loop, Names, Op, Value, parts_of
from paramedic.detect.vocabulary import hint_of
from paramedic.regex import regex

_TELLS = (
    "torch", "dist", "ddp", "fsdp", "shard", "rank", "world", "model", "net", "loss", "optim", "grad",
    "backward", "batch", "loader", "sampler", "dataset", "state_dict", "device", "cuda", "hvd", "deepspeed",
    "accelerat", "strategy", "train", "eval", "epoch", "step", "seed", "tf.", "keras", "ray",
)  # fmt: skip
"""A word of these stands in every function that rules ask about."""


_VARIABLE = regex(r"\b(?:environ|getenv)\b")
_PLACE = regex(r"RANK|WORLD|PROC|NODE")
"""Variables that launchers set."""


class Flow(Expressions):
    """One program: a file that trains, with all that it calls."""

    def __init__(self, program: Program, module: Module, covered: set[ast.AST]) -> None:
        self.program = program
        self.module = module
        self.ops: list[Op] = []
        self.globals: dict[str, Names] = {}
        self.loops: tuple[Loop, ...] = ()
        self.guards: tuple[Guard, ...] = ()
        self.contexts: tuple[Context, ...] = ()
        self.stack: tuple[str, ...] = ()
        self.running: list[ast.AST] = []
        self.visits: dict[ast.AST, int] = {}
        self.covered = covered
        self.seeds: list[Op] = []
        self.nodes: set[Module] = {module}
        self.mentioned: dict[str, bool] = {}
        self.notes: dict[str, Any] = {}
        """What rules have found out about it, by the name of the question."""
        self._started(module)
        self._leftovers(module)

    # -- what rules ask --------------------------------------------------------------------------------------------

    @cached_property
    def by_name(self) -> dict[str, list[Op]]:
        """Calls by the last part of their name, in order."""
        found: dict[str, list[Op]] = {}
        for op in self.ops:
            if op.kind == "call":
                found.setdefault(op.last, []).append(op)
        return found

    def calls(self, *names: str) -> Iterator[Op]:
        if len(names) == 1:
            yield from self.by_name.get(names[0], ())
            return
        yield from sorted((op for name in names for op in self.by_name.get(name, ())), key=lambda op: op.index)

    @cached_property
    def by_kind(self) -> dict[str, list[Op]]:
        """What is no call, by its kind, in order."""
        found: dict[str, list[Op]] = {}
        for op in self.ops:
            if op.kind != "call":
                found.setdefault(op.kind, []).append(op)
        return found

    def of_kind(self, kind: str) -> Sequence[Op]:
        """Assignments to attributes ("setattr") or items ("setitem"), "augassign", "slice", "delete"."""
        return self.by_kind.get(kind, ())

    def has(self, *names: str) -> bool:
        return any(name in self.by_name for name in names)

    def mentions(self, pattern: str) -> bool:
        """A word anywhere in the files that take part."""
        if pattern not in self.mentioned:
            self.mentioned[pattern] = any(re.search(pattern, module.text) for module in self.nodes)
        return self.mentioned[pattern]

    def says(self, *words: str) -> bool:
        """One of these whole words, anywhere in them."""
        there = [word for word in words if any(word in module.text for module in self.nodes)]
        return any(self.mentions(rf"\b{word}\b") for word in there)

    # -- running ---------------------------------------------------------------------------------------------------

    def _started(self, module: Module) -> Names:
        if module.source in self.globals:
            return self.globals[module.source]
        names = Names({"__name__": Value(const="__main__")})
        self.globals[module.source] = names
        self.nodes.add(module)
        for name, node in module.functions.items():
            names[name] = Value("function", name=name, node=node, module=module)
        for name, one in module.classes.items():
            names[name] = self._class(name, one, module)
        frame = Frame(module, names)
        if module is self.module:
            self._body(module.tree.body, frame)
        else:
            kept = self.loops, self.guards, self.contexts
            self.loops, self.guards, self.contexts = (), (), ()
            body = [node for node in module.tree.body if not is_main(node)]
            self._body(body, frame)
            self.loops, self.guards, self.contexts = kept
        return names

    def _leftovers(self, module: Module) -> None:
        """Functions that nobody in the project calls: a launcher or a framework does. One that has to do with neither
        tensors nor ranks tells nothing."""
        for name, node in module.functions.items():
            text = "\n".join(module.lines[node.lineno - 1 : node.end_lineno]).lower()
            if node not in self.covered and any(word in text for word in _TELLS):
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

    def _class(self, name: str, node: ast.ClassDef, module: Module) -> Value:
        return Value("class", name=name, node=node, module=module, bases=frozenset(self.program.bases(module, node)))

    def _body(self, body: Sequence[ast.stmt], frame: Frame) -> None:
        kept = self.guards
        for statement in body:
            if len(self.ops) > MOST:
                break
            self._statement(statement, frame)
        self.guards = kept

    def _statement(self, node: ast.stmt, frame: Frame) -> None:
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
                    value = by_rank(value, guard.value)
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

    def _import(self, node: ast.Import | ast.ImportFrom, frame: Frame) -> None:
        for alias in node.names:
            name = alias.asname or (alias.name if isinstance(node, ast.ImportFrom) else alias.name.split(".")[0])
            frame.names.drop(name)
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

    def _if(self, node: ast.If, frame: Frame) -> None:
        test = self.value(node.test, frame)
        if test.equals == NEVER:
            self._body(node.body if test.const else node.orelse, frame)
            return
        label = test.label or guard_of(node.test)
        asks = self._asked(node.test, frame)
        guard = Guard(node.test, label, test.equals, test, len(self.loops), asks)
        opposite = Guard(node.test, OPPOSITE.get(label, label), "", test, len(self.loops))
        names, kept = frame.names, self.guards
        self.guards = (*kept, guard)
        names.begin()
        self._body(node.body, frame)
        before = names.changes()
        after = {name: names.get(name) for name in before}
        if node.orelse:
            names.back(before)
            self.guards = (*kept, opposite)
            names.begin()
            self._body(node.orelse, frame)
            unchanged = names.changes()
            after = {**unchanged, **after}
            before = {name: names.get(name) for name in after}
        self.guards = kept
        ends = bool(node.body) and leaves(node.body[-1])
        if not ends:
            for name, value in after.items():
                other = before[name]
                if value is not None:
                    same = other is None or other is value
                    names[name] = value if same or other is None else by_rank(joined(value, other), test)
        elif not node.orelse:
            for name, old in before.items():
                if old is not None:
                    names[name] = old
            if label:
                self.guards = (*self.guards, opposite)

    def _asked(self, test: ast.expr, frame: Frame) -> str:
        """`FAULT == "hang"` or, in a loop, `args.fault == "hang"`: one value of many that are given from outside.
        Before the loops an argument mostly chooses what the whole program does."""
        for part in ast.walk(test):
            if isinstance(part, ast.Compare) and isinstance(part.ops[0], ast.Eq):
                for side in (part.left, *part.comparators):
                    if asked := self._told_from_outside(side, frame):
                        return asked
        return ""

    def _told_from_outside(self, side: ast.expr, frame: Frame) -> str:
        root = side.value if isinstance(side, ast.Attribute) else side
        if isinstance(root, ast.Call | ast.Subscript):
            text = text_of(root)
            return "environment" if _VARIABLE.search(text) and not _PLACE.search(text) else ""
        if not isinstance(root, ast.Name):
            return ""
        value = frame.names.get(root.id) or self.globals.get(frame.module.source, Names()).get(root.id) or Value()
        given = value.kind == "args" or (value.made is not None and value.made.last == "parse_args")
        if given and root is not side and self.loops:
            return "argument"
        return "environment" if value.name.startswith("environ[") and not value.tags else ""

    def _enter(self, item: ast.withitem, frame: Frame) -> None:
        count = len(self.ops)
        value = self.value(item.context_expr, frame)
        expression = item.context_expr
        if isinstance(expression, ast.IfExp) and len({op.node for op in self.ops[count:] if op.kind == "call"}) == 1:
            test = self.value(expression.test, frame)
            if test.equals == NEVER:
                expression = expression.body if test.const else expression.orelse
        sure = isinstance(expression, ast.Call) and not any(
            isinstance(part, ast.IfExp) for part in ast.walk(expression)
        )
        found = [op for op in self.ops[count:] if op.kind == "call"]
        entered = [Context(op.last, op.of, sure and op.node is expression, value) for op in found]
        if not found:
            entered = [self._held(one) for one in (value, value.attrs.get("or else")) if one is not None]
        self.contexts = (*self.contexts, *entered)
        if item.optional_vars is not None:
            self._assign(item.optional_vars, value, frame, item.context_expr)

    def _held(self, value: Value) -> Context:
        """A context that was made before it is entered, perhaps under a condition that no longer holds."""
        made = value.made
        if made is None:
            return Context(value.name.rsplit(".", 1)[-1], None, False, value)
        return Context(made.last, made.of, set(made.guards) <= set(self.guards), value)

    def _assign(self, target: ast.expr, value: Value, frame: Frame, node: ast.AST) -> None:
        match target:
            case ast.Name():
                if (value.kind == "import" or not value.known) and not value.tags and not value.kind:
                    hint = hint_of(target.id)
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
                        part = Value(tags=value.tags, name=UNPACKED, made=value.made, root=value.root)
                        part.attrs["each of"] = value
                        self._assign(one, part, frame, node)
            case ast.Attribute():
                of = self.value(target.value, frame)
                op = self._op("setattr", target.attr, node, frame, (value,), {}, of)
                op.target = text_of(target)
                of.attrs[target.attr] = value
                if of.kind in ("model", "instance") and (parts := parts_of(value)):
                    of.tags |= parts
                if of.kind == "params" and target.attr == "grad" and value.const is None:
                    op.name = op.last = "grad=None"
            case ast.Subscript():
                of = self.value(target.value, frame)
                key = self.value(target.slice, frame)
                op = self._op("setitem", "", node, frame, (key, value), {}, of)
                op.target = text_of(target)
                if isinstance(key.const, str) and of.kind in ("dict", ""):
                    of.hold(key.const, value)
                if not value.known:
                    of.tags |= value.tags
            case _:
                pass

    def _augmented(self, node: ast.AugAssign, frame: Frame) -> None:
        value = self.value(node.value, frame)
        of = self.value(node.target, frame)
        op = self._op("augassign", type(node.op).__name__, node, frame, (value,), {}, of)
        op.target = text_of(node.target)
        result = combined(node.op, of, value)
        result.made = op
        op.result = result
        if isinstance(node.target, ast.Name):
            frame.names[node.target.id] = result
        elif isinstance(node.target, ast.Attribute):
            holder = self.value(node.target.value, frame)
            holder.attrs[node.target.attr] = result


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

"""What expressions of a program give, calls of its own functions and classes among them."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from paramedic.detect.arithmetic import by_rank, combined, either, joined, union
from paramedic.detect.conditions import NEVER, OPPOSITE, compared, guard_of, is_rank, never_equal, node_is_number
from paramedic.detect.libraries import Libraries
from paramedic.detect.program import Function, Module, Program, dotted, text_of
from paramedic.detect.values import DEEPEST, MOST, Context, Guard, Loop, Names, Op, Value
from paramedic.detect.vocabulary import FIRST, MODEL_METHODS, SAME, hint_of, parameter, parts_of_class, variable

APPLIED = "applied"
"""Marks the `forward` of an autograd function, in which torch follows nothing."""


@dataclass(eq=False, slots=True)
class Frame:
    module: Module
    names: Names
    returned: list[Value] = field(default_factory=list)
    yielded: list[Value] = field(default_factory=list)
    guards: int = 0
    """How many conditions held when it was called."""


class Expressions(Libraries):
    """One program while it is gone through: where it stands, what was done so far. `Flow` adds its statements."""

    program: Program
    ops: list[Op]
    globals: dict[str, Names]
    loops: tuple[Loop, ...]
    guards: tuple[Guard, ...]
    contexts: tuple[Context, ...]
    stack: tuple[str, ...]
    running: list[ast.AST]
    visits: dict[ast.AST, int]
    covered: set[ast.AST]

    def _started(self, module: Module) -> Names:
        raise NotImplementedError

    def _body(self, body: Sequence[ast.stmt], frame: Frame) -> None:
        raise NotImplementedError

    def _named(self, full: str, module: Module) -> Value:
        raise NotImplementedError

    def _assign(self, target: ast.expr, value: Value, frame: Frame, node: ast.AST) -> None:
        raise NotImplementedError

    # -- values ----------------------------------------------------------------------------------------------------

    def value(self, node: ast.expr | None, frame: Frame) -> Value:
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
                return combined(node.op, self.value(node.left, frame), self.value(node.right, frame))
            case ast.UnaryOp():
                value = self.value(node.operand, frame)
                if isinstance(node.op, ast.Not) and value.equals == NEVER:
                    return Value(tags=value.tags, const=not value.const, equals=NEVER)
                if isinstance(node.op, ast.Not):
                    return Value(tags=value.tags, label=OPPOSITE.get(value.label, value.label))
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
                return Value(tags=union(values), label=label)
            case ast.Compare():
                return self._compare(node, frame)
            case ast.IfExp():
                test = self.value(node.test, frame)
                if test.equals == NEVER:
                    return self.value(node.body if test.const else node.orelse, frame)
                label = test.label or guard_of(node.test)
                kept = self.guards
                self.guards = (*kept, Guard(node.test, label, test.equals, test, len(self.loops)))
                one = self.value(node.body, frame)
                self.guards = (*kept, Guard(node.test, OPPOSITE.get(label, label), "", test, len(self.loops)))
                other = self.value(node.orelse, frame)
                self.guards = kept
                result = joined(one, other)
                if one.made is not None and other.made is not None and result is not one and result is not other:
                    result.attrs["or else"] = other if result.made is one.made else one
                return by_rank(result, test)
            case ast.Tuple() | ast.List() | ast.Set():
                items = [self.value(one, frame) for one in node.elts]
                flat: list[Value] = []
                for element, item in zip(node.elts, items, strict=True):
                    flat += (item.items or [item]) if isinstance(element, ast.Starred) else [item]
                kind = "list" if isinstance(node, ast.List) else "tuple"
                return Value(kind, union(flat), items=flat)
            case ast.Starred():
                return self.value(node.value, frame)
            case ast.Dict():
                result = Value("dict")
                for key, entry in zip(node.keys, node.values, strict=True):
                    value = self.value(entry, frame)
                    name = self.value(key, frame).const if key is not None else None
                    if isinstance(name, str):
                        result.hold(name, value)
                    elif key is None:
                        result.attrs.update(value.attrs)
                    result.tags |= value.tags
                result.node = node
                return result
            case ast.Subscript():
                return self._subscript(node, frame)
            case ast.Slice():
                parts = [self.value(one, frame) for one in (node.lower, node.upper, node.step) if one is not None]
                return Value("slice", union(parts), items=parts)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node, frame)
            case ast.JoinedStr():
                parts = [self.value(one.value, frame) for one in node.values if isinstance(one, ast.FormattedValue)]
                held = {f"part {number}": part for number, part in enumerate(parts)}
                return Value("text", union(parts) - {"graph"}, attrs=held)
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

    def _name(self, name: str, frame: Frame) -> Value:
        if name in frame.names:
            return frame.names[name]
        names = self.globals.get(frame.module.source) or Names()
        if name in names:
            return names[name]
        if name in frame.module.imports:
            value = self._named(frame.module.imports[name], frame.module)
            names.learn(name, value)
            return value
        value = Value(tags=hint_of(name), name=name)
        names.learn(name, value)
        return value

    def _attribute(self, node: ast.Attribute, frame: Frame) -> Value:
        of = self.value(node.value, frame)
        name = node.attr
        if name in of.attrs and of.kind not in ("function", "lambda"):
            found = of.attrs[name]
            if of.kind == "dataset":
                return by_rank(found, of)
            return found if name != "grad" else Value(found.kind, found.tags | {"grad"}, root=of.root)
        if of.kind == "import":
            return Value("import", name=f"{of.name}.{name}", tags=hint_of(name) if of.name == "args" else frozenset())
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
        hint = hint_of(name)
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
            above = next((found for base in node.bases if (found := self.program.class_of(dotted(base), module))), None)
            if above is None:
                return None
            module, node = above
        return None

    def _of_class(self, of: Value, name: str) -> Value | None:
        """A method that a class itself is asked for; `apply` of an autograd function runs its `forward`."""
        applied = name == "apply" and "Function" in of.bases
        method = self._method(of, "forward" if applied else name)
        if method is None or not isinstance(method.node, Function):
            return None
        method.label = APPLIED if applied else ""
        decorators = {dotted(one) for one in method.node.decorator_list}
        method.element = of if "classmethod" in decorators else Value() if applied else None
        return method

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Value:
        of, key = self.value(node.value, frame), self.value(node.slice, frame)
        if of.kind == "import" and of.name.endswith("environ") and isinstance(key.const, str):
            return Value(tags=variable(key.const), name=f"environ[{key.const}]")
        if isinstance(key.const, str) and key.const in of.attrs:
            return of.attrs[key.const]
        if isinstance(key.const, int) and of.items is not None and -len(of.items) <= key.const < len(of.items):
            return of.items[key.const]
        if of.kind == "list" and of.element is not None and of.element.kind == "group":
            return of.element
        hint = hint_of(key.const) if isinstance(key.const, str) else frozenset()
        kind = of.kind if of.kind in ("model", "params", "loader", "batch", "mesh", "tensor") else ""
        if of.kind == "model":
            return Value("model", of.tags, root=of.base, attrs={"parent": of}, name="[]")
        result = Value(kind, of.tags | key.tags | hint, root=of.root, made=of.made, attrs={"sliced": of, "by": key})
        if isinstance(key.const, str):
            result.name = f"[{key.const}]"
        if key.has("rank", "random"):
            self._op("slice", "", node, frame, (key,), {}, of).result = result
        return result

    def _compare(self, node: ast.Compare, frame: Frame) -> Value:
        values = [self.value(one, frame) for one in (node.left, *node.comparators)]
        tags = union(values) - {"graph"}
        if len(values) == 2 and isinstance(node.ops[0], ast.Eq) and never_equal(*values):
            return Value(tags=tags, const=False, equals=NEVER)
        if len(values) == 2:
            for left, right, text in ((values[0], values[1], node.comparators[0]), (values[1], values[0], node.left)):
                if is_rank(left):
                    label, equals = compared(node.ops[0], right, text)
                    return Value(tags=tags, label=label, equals=equals)
        return Value(tags=tags, attrs={"sides": Value("tuple", tags, items=values)})

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, frame: Frame) -> Value:
        frame.names.begin()
        kept = self.loops
        overs = []
        for generator in node.generators:
            over = self.value(generator.iter, frame)
            overs.append(over)
            self.loops = (*self.loops, Loop(node, over, text_of(generator.target)))
            self._assign(generator.target, self._element(over), frame, node)
            for test in generator.ifs:
                self.value(test, frame)
        if isinstance(node, ast.DictComp):
            self.value(node.key, frame)
            value = self.value(node.value, frame)
        else:
            value = self.value(node.elt, frame)
        frame.names.back(frame.names.changes())
        self.loops = kept
        kind = "params" if value.kind == "params" and "grad" not in value.tags else "list"
        tags = value.tags | (union(overs) & {"rank", "world"})
        each = Value("tuple", items=overs)
        return Value(kind, tags, root=value.root, element=value, node=node, attrs={"each of": each})

    # -- calls -----------------------------------------------------------------------------------------------------

    def _op(
        self, kind: str, name: str, node: ast.AST, frame: Frame, args: Sequence[Value], keywords: dict[str, Value],
        of: Value | None = None,
    ) -> Op:  # fmt: skip
        op = Op(
            kind, name, node, frame.module, len(self.ops), tuple(args), keywords, self.loops, self.guards,
            self.contexts, self.stack, of,
        )  # fmt: skip
        self.ops.append(op)
        return op

    def _call(self, node: ast.Call, frame: Frame) -> Value:
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

    def _callee(self, func: ast.Attribute, of: Value, frame: Frame) -> Value:
        if of.kind in ("instance", "model") and of.bases is not None:
            method = self._method(of, func.attr)
            if method is not None:
                return method
        if of.kind == "class" and (method := self._of_class(of, func.attr)) is not None:
            return method
        if of.kind == "import":
            return self._named(f"{of.name}.{func.attr}", frame.module)
        if of.kind == "file" and of.module is not None:
            found = self._started(of.module).get(func.attr)
            return found or Value("import", name=f"{of.name}.{func.attr}")
        if of.kind == "model" and func.attr == "module" and of.wrap:
            return Value("model", of.tags, root=of.base, attrs={"parent": of, "outer": of}, name="module")
        held = of.attrs.get(func.attr)
        if held is not None and of.kind not in ("function", "lambda") and (held.kind or held.node is not None):
            return held
        if of.kind == "model" and func.attr not in MODEL_METHODS and not of.bases and func.attr not in SAME:
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
        self, op: Op, callee: Value, args: list[Value], keywords: dict[str, Value], frame: Frame, node: ast.Call
    ) -> Value:  # fmt: skip
        every = [*args, *keywords.values()]
        if callee.kind in ("function", "method"):
            given = ([callee.element] if callee.kind == "method" and callee.element is not None else []) + args
            if callee.label != APPLIED:
                return self._run(callee, tuple(given), keywords, node)
            kept, self.contexts = self.contexts, (*self.contexts, Context("no_grad", None, True, Value()))
            result = self._run(callee, tuple(given), keywords, node)
            self.contexts = kept
            return Value("tensor", result.tags | union(every), made=op)  # its `backward` is its own affair
        if callee.kind == "lambda":
            return Value(tags=union(every))
        if callee.kind == "class":
            return self._instance(callee, tuple(args), keywords, node)
        if callee.kind == "model":
            return self._forward(op, callee, every)
        if callee.kind == "instance" and (method := self._method(callee, "__call__")) is not None:
            return self._run(method, (callee, *args), keywords, node)
        for one in every:
            if (
                one.kind in ("function", "method")
                and one.node is not None
                and op.last not in ("partial", "wraps", "getattr")
            ) and one.node not in self.covered:
                self._run(one, (one.element,) if one.kind == "method" and one.element else (), {}, node)
        return self._library(op, args, keywords, every)

    def _run(self, callee: Value, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.AST | None) -> Value:
        function, module = callee.node, callee.module
        if not isinstance(function, Function) or module is None:
            return Value(tags=union(args))
        count = self.visits.get(function, 0)
        if function in self.running or len(self.running) > DEEPEST or count > 12 or len(self.ops) > MOST:
            return Value(tags=union([*args, *keywords.values()]) - {"graph"})
        self.visits[function] = count + 1
        self.covered.add(function)
        self._started(module)
        names = Names(callee.attrs) if callee.kind == "function" and callee.attrs else Names()
        frame = Frame(module, names, guards=len(self.guards))
        self._bind(function, args, keywords, frame)
        kept = self.loops, self.guards, self.contexts, self.stack
        self.stack = (*self.stack, function.name)
        for decorator in function.decorator_list:
            text = text_of(decorator)
            if re.search(r"no_grad|inference_mode", text):
                self.contexts = (*self.contexts, Context("no_grad", None, True, Value()))
            elif re.search(r"\b(?:lru_)?cache\b|\bonce\b", text):
                self.loops = ()  # it runs once, wherever it is called
            elif re.search(r"rank_zero|main_process", text):
                self.guards = (*self.guards, Guard(decorator, "first", "0", Value(), len(self.loops)))
        self.running.append(function)
        self._body(function.body, frame)
        self.running.pop()
        self.loops, self.guards, self.contexts, self.stack = kept
        if frame.yielded:
            return Value("iter", union(frame.yielded), element=either(frame.yielded))
        return either(frame.returned) if frame.returned else Value(const=None)

    def _bind(self, function: Function, args: tuple[Value, ...], keywords: dict[str, Value], frame: Frame) -> None:
        arguments = function.args
        names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
        for name, value in zip(names, args, strict=False):
            frame.names[name] = value
        if arguments.vararg is not None:
            rest = list(args[len(names) :])
            frame.names[arguments.vararg.arg] = Value("tuple", union(rest), items=rest)
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
                if default is not None and not (hint_of(name) and node_is_number(default)):
                    frame.names[name] = self.value(default, frame)
                else:
                    frame.names[name] = parameter(name, annotated.get(name))
        if arguments.kwarg is not None:
            rest_of = {key: value for key, value in keywords.items() if key not in names and key not in only}
            frame.names[arguments.kwarg.arg] = Value("dict", union(list(rest_of.values())), attrs=rest_of)

    def _instance(self, cls: Value, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.AST) -> Value:
        bases = cls.bases
        kind = "instance"
        if bases & {"Module", "LightningModule", "Model", "PreTrainedModel", "Sequential", "GPT2LMHeadModel"}:
            kind = "model"
        elif bases & {"Dataset", "IterableDataset", "TensorDataset", "ImageFolder"}:
            kind = "dataset"
        tags = union([*args, *keywords.values()])
        value = Value(kind, tags, name=cls.name, node=cls.node, module=cls.module, bases=bases | {cls.name})
        init = self._method(value, "__init__")
        if init is not None:
            self._run(
                Value("function", name="__init__", node=init.node, module=init.module), (value, *args), keywords, node
            )
        else:
            self._fields(value, args, keywords)
        if kind == "model":
            value.tags = frozenset(value.tags | parts_of_class(cls.node))
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

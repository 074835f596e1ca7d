"""A project's Python files as syntax trees: which file a name comes from, and what classes derive from."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from paramedic.model import Event
from paramedic.regex import regex
from paramedic.syntax import parsed

Function = ast.FunctionDef | ast.AsyncFunctionDef
_TRAINS = regex(
    r"\.backward\(|apply_gradients|def training_step|\.minimize\(|\.fit\(|\.train_batch\("
    r"|optim\b(?<!\woptim)|clip_grad_norm_|opt\w*\.step\(|schedule\.step\(|get_forward_backward_func|execute_pipeline"
)
"""Every alternative begins with a letter of its own: so the search need not stop at every place."""
_LIBRARY = regex(r"\b(?:transformers|trl)\b")
_HANDS_OVER = regex(r"Trainer[()]")
"""Behind the name of the library: the loop is in it."""
_MOST = 400_000
"""Characters: a longer file is no training program."""


@dataclass(eq=False)
class Module:
    """One file. Its names are those that it imports or defines at the top."""

    source: str
    text: str
    event: Event
    tree: ast.Module
    lines: list[str] = field(default_factory=list)
    imports: dict[str, str] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        return self.source.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @cached_property
    def statements(self) -> list[ast.AST]:
        """In the order of `ast.walk`, which would go through twenty expressions for each of them."""
        found: list[ast.AST] = [self.tree]
        for node in found:
            for part in _PARTS:
                found += getattr(node, part, ())
        return found


class Program:
    """All files of a project that have to do with training, parsed when they are asked for."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.texts = {event.source: event for event in events}
        self.parsed: dict[str, Module | None] = {}
        self.stems: dict[str, list[str]] = {}
        self.found: dict[tuple[str, str], Module | None] = {}
        for source in self.texts:
            stem = source.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            self.stems.setdefault(stem.rsplit(".", 1)[-1], []).append(source)

    @cached_property
    def trainers(self) -> list[Module]:
        """Files that train, those that nobody imports first."""
        found = [self.module(source) for source, event in self.texts.items() if _trains(event.fields["text"])]
        modules = [module for module in found if module is not None]
        imported = {other.source for module in modules for other in self.imported(module)}
        return sorted(modules, key=lambda module: module.source in imported)

    def module(self, source: str) -> Module | None:
        if source not in self.parsed:
            self.parsed[source] = _parsed(self.texts[source])
        return self.parsed[source]

    def imported(self, module: Module) -> Iterator[Module]:
        for name in dict.fromkeys(module.imports.values()):
            other = self.find(name.rpartition(".")[0], module) or self.find(name, module)
            if other is not None and other is not module:
                yield other

    def find(self, dotted: str, near: Module) -> Module | None:
        """The project's file of that module name; of several the one nearest to the file that imports it."""
        if dotted.rsplit(".", 1)[-1] not in self.stems:
            return None
        key = dotted, near.source
        if key not in self.found:
            self.found[key] = self._find(dotted, near)
        return self.found[key]

    def _find(self, dotted: str, near: Module) -> Module | None:
        last = dotted.rsplit(".", 1)[-1]
        sources = self.stems.get(last, ())
        fitting = []
        for source in sources:
            stem = source.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            if stem == dotted or stem.endswith(f".{dotted}"):
                fitting.append(source)
        if not fitting:
            return None
        best = max(fitting, key=lambda source: (_common(source, near.source), -len(source)))
        if "." not in dotted and best.rpartition("/")[0] != near.source.rpartition("/")[0]:
            return None
        return self.module(best)

    def bases(self, module: Module, node: ast.ClassDef, depth: int = 0) -> set[str]:
        """Last names of all classes above it, through the project's own files."""
        found: set[str] = set()
        for base in node.bases:
            name = dotted(base)
            found.add(name.rsplit(".", 1)[-1])
            if depth < 6 and (above := self.class_of(name, module)):
                found |= self.bases(above[0], above[1], depth + 1)
        return found

    def class_of(self, name: str, module: Module) -> tuple[Module, ast.ClassDef] | None:
        if name in module.classes:
            return module, module.classes[name]
        first, _, rest = name.partition(".")
        full = module.imports.get(first, first) + (f".{rest}" if rest else "")
        folder, _, last = full.rpartition(".")
        other = self.find(folder, module) if folder else None
        if other is not None and last in other.classes:
            return other, other.classes[last]
        return None


def _trains(text: str) -> bool:
    if _TRAINS.search(text):
        return True
    library = _LIBRARY.search(text) if "Trainer" in text else None
    return library is not None and _HANDS_OVER.search(text, library.end()) is not None


def _common(one: str, other: str) -> int:
    count = 0
    for a, b in zip(one.split("/")[:-1], other.split("/")[:-1], strict=False):
        if a != b:
            break
        count += 1
    return count


def _parsed(event: Event) -> Module | None:
    text = event.fields["text"]
    if len(text) > _MOST:
        return None
    try:
        tree = parsed(text)
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        return None
    module = Module(event.source, text, event, tree, text.split("\n"))
    for node in _imports(tree.body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                module.imports[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        else:
            for alias in node.names:
                module.imports[alias.asname or alias.name] = (
                    f"{node.module}.{alias.name}" if node.module else alias.name
                )
    for child in tree.body:
        if isinstance(child, Function):
            module.functions[child.name] = child
        elif isinstance(child, ast.ClassDef):
            module.classes[child.name] = child
    return module


_PARTS = ("body", "handlers", "orelse", "finalbody", "cases")
_BLOCKS = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.For, ast.AsyncFor, ast.While, ast.With,
    ast.AsyncWith, ast.Try, ast.TryStar,
)  # fmt: skip


def _imports(body: Sequence[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Also those in functions and under conditions."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, _BLOCKS):
            for part in ("body", "orelse", "finalbody"):
                yield from _imports(getattr(node, part, ()))


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        above = dotted(node.value)
        return f"{above}.{node.attr}" if above else node.attr
    if isinstance(node, ast.Subscript):
        return dotted(node.value)
    return ""


def text_of(node: ast.AST | None) -> str:
    """As it would be written. Plain names, which most are, need no `unparse`; nothing is unparsed twice."""
    if node is None:
        return ""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        parts = [node.attr]
        below = node.value
        while isinstance(below, ast.Attribute):
            parts.append(below.attr)
            below = below.value
        if isinstance(below, ast.Name):
            return ".".join((below.id, *reversed(parts)))
    known: str | None = node.__dict__.get("_as_written")
    if known is None:
        known = node.__dict__["_as_written"] = ast.unparse(node)
    return known

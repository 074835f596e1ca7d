"""What lies beside the logs → Run: the job's programs and configurations, and the command that started it.

Files are read as `project` reads them; nothing is imported or executed. Which of the programs ran is a fact of its own:
what the command names, or the only one there is, and what they import.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import islice

from paramedic.collect import tree
from paramedic.model import Event, Fact, Run, Skipped
from paramedic.redact import redact
from paramedic.regex import regex

RAN = "ran"
"""The name of the fact."""
_MOST_TOLD, _MOST_TOLD_FILES, _LARGEST_TOLD, _AS_FAR = 2_000, 20, 64 << 10, 500
_DIRECTIVE = regex(r"#\s?(?:SBATCH|PBS|BSUB|COBALT)\b|#\$ ")
_MOST_FILES = 2_000
_MOST_LOOKED_AT = 20_000
_CONFIGS = (".json", ".yaml", ".yml", ".toml", ".sh", ".slurm", ".sbatch")
_IMPORT = regex(r"^[ \t]*+(?:from[ \t]++([\w.]++)[ \t]++import[ \t]++\(?([\w, \t]*+)|import[ \t]++([\w., \t]++))", re.M)


def is_program(path: str) -> bool:
    """A path that is named as a source of its own, by its name: it is no log."""
    return path.endswith(".py")


def read_beside(paths: Sequence[str], command: Sequence[str] = (), place: str = "") -> Run | None:
    """None where there is neither a program nor a configuration nor a command, which was started in `place`. Without a
    program what settings say is read for advice alone."""
    skipped: list[Skipped] = []
    named = [os.path.join(place, word.rsplit("=", 1)[-1]) for word in command]
    asks = _Asks()
    found = tree.without_secrets(_files(paths, named, asks, skipped))
    told = tuple(_told(paths))
    if not found and not command:
        return Run("beside", events=told) if told else None
    from paramedic.collect.project import (  # only here: a plain log needs none of it
        is_wanted,
        joined,
        read_command,
        read_files,
    )

    run = read_files([file for file in found if is_wanted(file)])
    parts = [run, read_command(command)] if command else [run]
    whole = joined(parts)
    ran = tuple(Fact(RAN, True, name) for name in _ran(run, found, named, asks))
    whole = replace(whole, id=run.id, events=(*whole.events, *told), facts=(*whole.facts, *ran))
    return replace(whole, skipped=(*whole.skipped, *tree.said(skipped)))


def _told(paths: Iterable[str]) -> Iterator[Event]:
    """The lines of what started or set up the job: advice is chosen by them, and nothing else."""
    left = _MOST_TOLD
    for file in islice((file for path in paths for file in _settings(path)), _MOST_TOLD_FILES):
        text = tree.text_of(file, []) if file.size <= _LARGEST_TOLD else None
        lines = ((number, line.strip()) for number, line in enumerate((text or "").splitlines(), 1))
        meant = [(number, line) for number, line in lines if line and (line[0] != "#" or _DIRECTIVE.match(line))][:left]
        left -= len(meant)
        yield from (Event(redact(file.name), n, "told", redact(line)[:_AS_FAR], n) for n, line in meant)


def _settings(path: str) -> Iterator[tree.File]:
    if os.path.isdir(path):
        files: Iterable[tree.File] = islice(tree.files(path, []), _MOST_LOOKED_AT)
    else:
        files = [tree.File(path, path, os.path.getsize(path))] if os.path.isfile(path) else []
    return (file for file in files if file.name.endswith(_CONFIGS))


def with_plan(run: Run, beside: Run) -> Run:
    """How many ranks the command was to start: a statement like those that programs print, where none of them prints
    one, and the job's size where no log says it."""
    said = [fact for fact in beside.facts if fact.name == "wanted ranks"]
    planned = any(event.kind == "metric" and event.fields.get("name") == "planned" for event in run.events)
    if len(said) != 1 or planned:
        return run
    ranks, command = int(said[0].value), next(source for source in beside.sources if source.kind == "command")
    fields = {"name": "planned", "values": str(ranks), "steps": "", "shown": f"1\t{ranks} ranks by the command"}
    event = Event(command.id, 1, "metric", f"{ranks} ranks", 1, fields=fields)
    return replace(run, events=(*run.events, event), world_size=run.world_size or ranks)


# -- which files ---------------------------------------------------------------------------------------------------


class _Asks:
    """Which modules a program asks for, by its text: each is read once."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[str, ...]] = {}

    def of(self, file: tree.File) -> tuple[str, ...]:
        path = os.path.realpath(file.path)
        if path not in self.known:
            self.known[path] = tuple(_modules(tree.text_of(file, []) or ""))
        return self.known[path]


def _files(paths: Sequence[str], named: Sequence[str], asks: _Asks, skipped: list[Skipped]) -> list[tree.File]:
    found: dict[str, tree.File] = {}
    words = {os.path.basename(word) for word in named}
    for path in paths:
        for file in _below(path, skipped) if os.path.isdir(path) else _named(path, words):
            found.setdefault(os.path.realpath(file.path), file)
    for word in named:
        for file in _with_imports(word, asks):
            found.setdefault(os.path.realpath(file.path), file)
    return list(found.values())


def _below(folder: str, skipped: list[Skipped]) -> Iterator[tree.File]:
    """Of a folder with a program in it; one that has only logs is left to those who read logs."""
    prefix = "" if folder in (".", "./") else f"{folder.rstrip('/')}/"
    files: list[tree.File] = []
    for count, file in enumerate(tree.files(folder, [])):
        if count >= _MOST_LOOKED_AT or len(files) >= _MOST_FILES:
            skipped.append(Skipped(folder, "too many files: not all programs beside the logs were read"))
            break
        if is_program(file.name) or file.name.endswith(_CONFIGS) or "." not in os.path.basename(file.name):
            files.append(replace(file, name=prefix + file.name))
    return iter(files if any(is_program(file.name) for file in files) else ())


def _named(path: str, words: Set[str]) -> Iterator[tree.File]:
    """A program; or a configuration that the command names as well, wherever it lies now."""
    asked_for = path.endswith(_CONFIGS) and os.path.basename(path) in words
    if (is_program(path) or asked_for) and os.path.isfile(path):
        yield tree.File(path, path, os.path.getsize(path))


def _with_imports(word: str, asks: _Asks) -> Iterator[tree.File]:
    """A file that the command names, and the modules that lie where Python would look for them."""
    if not word.endswith((*_CONFIGS, ".py")) or not os.path.isfile(word):
        return
    waiting, seen = [os.path.normpath(word)], set[str]()
    while waiting and len(seen) < _MOST_FILES:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        file = tree.File(path, path, os.path.getsize(path))
        yield file
        if is_program(path):
            waiting += _imported(file, os.path.dirname(word), asks)


def _imported(file: tree.File, root: str, asks: _Asks) -> Iterator[str]:
    """By name alone, below the script's folder: the folder from which it imports."""
    for module in asks.of(file):
        dots = len(module) - len(module.lstrip("."))
        base = root
        if dots:
            base = os.path.dirname(file.path)
            for _ in range(dots - 1):
                base = os.path.dirname(base)
        stem = os.path.join(base, *module.lstrip(".").split("."))
        for candidate in (f"{stem}.py", os.path.join(stem, "__init__.py")):
            inside = os.path.realpath(candidate).startswith(os.path.realpath(root or ".") + os.sep)
            if inside and os.path.isfile(candidate) and not os.path.islink(candidate):
                yield os.path.normpath(candidate)


def _modules(text: str) -> Iterator[str]:
    for found in _IMPORT.finditer(text):
        module, names, plain = found.groups()
        if plain:
            yield from (part.split()[0] for part in plain.split(",") if part.split())
        elif module:
            yield module
            yield from (
                f"{module}{'' if module.endswith('.') else '.'}{part.split()[0]}"
                for part in (names or "").split(",")
                if part.split()
            )


# -- which of them ran ---------------------------------------------------------------------------------------------


def _ran(run: Run, files: Iterable[tree.File], named: Sequence[str], asks: _Asks) -> Iterator[str]:
    """The names of the programs of the job. Where several could have been started nobody knows."""
    by_path = {os.path.realpath(file.path): file for file in files if is_program(file.name)}
    by_module: dict[str, list[str]] = {}
    for path in by_path:
        by_module.setdefault(_module_of(path), []).append(path)
    words = {os.path.realpath(word) for word in named}
    started = [path for path in by_path if path in words]
    if not started:
        inner = {module for path, file in by_path.items() for module in _reached(path, file, by_module, asks)}
        started = [path for path in by_path if path not in inner and not _is_no_program(path)]
        if len(started) != 1:
            return
    known = {source.id for source in run.sources}
    waiting, seen = started, set[str]()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += _reached(path, by_path[path], by_module, asks)
    yield from sorted(by_path[path].name for path in seen if by_path[path].name in known)


def _module_of(path: str) -> str:
    """The last part of the name by which it is imported."""
    return os.path.basename(path.removesuffix(f"{os.sep}__init__.py").removesuffix(".py"))


def _reached(path: str, file: tree.File, by_module: dict[str, list[str]], asks: _Asks) -> list[str]:
    wanted = {module.lstrip(".").replace(".", os.sep) for module in asks.of(file)}
    found = [
        other
        for stem in wanted
        for other in by_module.get(os.path.basename(stem), ())
        if other.endswith((f"{os.sep}{stem}.py", f"{os.sep}{stem}{os.sep}__init__.py"))
    ]
    return [other for other in dict.fromkeys(found) if other != path]


def _is_no_program(path: str) -> bool:
    """What lies beside a program and is not started with ranks."""
    base = os.path.basename(path)
    return base in ("setup.py", "conftest.py", "__init__.py") or base.startswith("test_")

"""What the program reads back and writes: files, the states in them, names that matched, tensors that are its own."""

from __future__ import annotations

import functools
import os
import re
import sys
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from .agent import Agent

_FILES = 8
_SIBLINGS = 256  # files in a folder
_TENSORS, _DEPTH = 64, 5
_OF_EACH_RANK = re.compile(r"running_|num_batches|rng|random|generator")
"""What replicas may well have of their own."""


class Restoring:
    def __init__(self, agent: Agent, said: dict[str, Any], is_on: Callable[[], bool]) -> None:
        self.agent, self.said, self.is_on = agent, said, is_on
        self.taken: dict[int, tuple[Any, int]] = {}
        """States that modules gave, and after how many steps."""

    def files(self, serialization: Any) -> None:
        load = serialization.load

        @functools.wraps(load)
        def loaded(*arguments: Any, **named: Any) -> Any:
            result = load(*arguments, **named)
            if self.is_on():
                self.agent.guarded("conduct: files", self._file, "loads", arguments[:1] or (named.get("f"),), result)
            return result

        serialization.load = loaded
        save = serialization.save

        @functools.wraps(save)
        def saved(*arguments: Any, **named: Any) -> Any:
            what, file = (*arguments, *([None] * 2))[:2]
            what, file = named.get("obj", what), named.get("f", file)
            if self.is_on():
                self.agent.guarded("conduct: files", self._file, "saves", (file,), what)
                return save(*arguments, **named)
            before = self.agent.guarded("conduct: files", _versions, what) if self.agent.is_watching else None
            result = save(*arguments, **named)
            if before and self.agent.guarded("conduct: files", _versions, what) != before:
                self.said["changed_while_saved"] = str(file)[-160:]
            return result

        serialization.save = saved
        for name in ("replace", "rename"):
            setattr(os, name, self.moves(getattr(os, name)))

    def moves(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Who writes with care writes to another name first."""

        @functools.wraps(function)
        def moved(src: Any, dst: Any, **named: Any) -> None:
            function(src, dst, **named)
            if self.said["saves"] and self.is_on():
                self.agent.guarded("conduct: files", self._moved, src, dst)

        return moved

    def _moved(self, source: Any, target: Any) -> None:
        before, after = (str(os.path.abspath(os.fspath(path)))[-160:] for path in (source, target))
        for row in self.said["saves"]:
            if row["path"] == before:
                row["path"] = after

    def _file(self, way: str, file: tuple[Any, ...], content: Any) -> None:
        path = str(os.path.abspath(os.fspath(file[0])))[-160:] if isinstance(file[0], (str, os.PathLike)) else ""
        again = [row for row in self.said[way] if path and (row["path"], row["step"]) == (path, self.agent.steps)]
        if again:
            again[0]["times"] = again[0].get("times", 1) + 1
        elif len(self.said[way]) < _FILES:
            said = {"path": path, "step": self.agent.steps, "holds": sorted(set(_states(content)))}
            if way == "loads" and path and not self.agent.steps:
                said["newer"] = _newer(path)
            if way == "saves":
                said["print"] = _print(content)
                said["gathered"] = self.said["gathered"]
                said["shards"] = sum(map(_is_shard, _tensors(content)))
            if way == "saves" and (since := [self.agent.steps - step for step in self._kept(content)]):
                said["kept_for"] = max(since)
            self.said[way].append(said)

    def _kept(self, content: Any, depth: int = 0) -> Iterator[int]:
        """After how many steps the states in it were taken whose tensors still are the model's own."""
        if not isinstance(content, dict) or depth > 2:
            return
        state, step = self.taken.get(id(content), (None, 0))
        if state is not None and state() is content:
            yield step
        else:
            for one in list(content.values())[:32]:
                yield from self._kept(one, depth + 1)

    def of_modules(self, base: Any) -> None:
        load = base.load_state_dict

        @functools.wraps(load)
        def load_state_dict(model: Any, *arguments: Any, **named: Any) -> Any:
            given = arguments[0] if arguments else named.get("state_dict")
            own = self.agent.guarded("conduct: models", _own, model, given) if self.is_on() else None
            result = load(model, *arguments, **named)
            if self.is_on():
                self.agent.guarded("conduct: models", self._matched, model, given, own, result)
            return result

        base.load_state_dict = load_state_dict
        give = base.state_dict

        @functools.wraps(give)
        def state_dict(model: Any, *arguments: Any, **named: Any) -> Any:
            state = give(model, *arguments, **named)
            if not arguments and not named and self.is_on():
                self.agent.guarded("conduct: models", self._given, state)
            return state

        base.state_dict = state_dict

    def _given(self, state: Any) -> None:
        if "torch.distributed.checkpoint" not in sys.modules:
            self.taken = dict(list(self.taken.items())[-_FILES:])
            self.taken[id(state)] = weakref.ref(state), self.agent.steps

    def _matched(self, model: Any, given: Any, own: int | None, result: Any) -> None:
        if len(self.said["matched"]) < _FILES and hasattr(result, "missing_keys"):
            self.said["matched"].append({
                "model": type(model).__name__, "step": self.agent.steps, "given": len(given), "own": own or 0,
                "missing": len(result.missing_keys), "unexpected": len(result.unexpected_keys),
                "one": str(next(iter(result.unexpected_keys), ""))[:80],
                "other": str(next(iter(result.missing_keys), ""))[:80],
            })  # fmt: skip

    def of_optimizers(self, base: Any, rates: Callable[[Any], list[float]]) -> None:
        load = base.load_state_dict

        @functools.wraps(load)
        def load_state_dict(optimizer: Any, *arguments: Any, **named: Any) -> Any:
            result = load(optimizer, *arguments, **named)
            if self.is_on():
                self.restored("optimizer")
                self.said["loaded_rate"] = [self.agent.steps, self.agent.guarded("conduct: states", rates, optimizer)]
            return result

        base.load_state_dict = load_state_dict

    def restored(self, what: str) -> None:
        states = self.said["states"]
        states[what] = states.get(what, 0) + 1


def _own(model: Any, given: Any) -> int:
    """How many of the tensors are the model's own already: to load them changes nothing. What torch's distributed
    checkpoints do is to read into them first."""
    if "torch.distributed.checkpoint" in sys.modules:
        return 0
    mine = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers()) if tensor.numel()}
    return sum(getattr(one, "data_ptr", int)() in mine for one in given.values() if getattr(one, "numel", int)())


def _states(content: Any, depth: int = 0) -> Iterator[str]:
    """Which kinds of state a file holds, by what such states always have."""
    if not isinstance(content, dict) or depth > 2:
        return
    names = content.keys()
    if {"state", "param_groups"} <= names:
        yield "optimizer"
    elif {"last_epoch", "_step_count"} <= names:
        yield "scheduler"
    elif {"scale", "growth_factor"} <= names:
        yield "scaler"
    elif content and all(hasattr(one, "untyped_storage") for one in list(content.values())[:4]):
        yield "tensors"
    else:
        for one in list(content.values())[:32]:
            yield from _states(one, depth + 1)


def _tensors(content: Any, depth: int = 0) -> Iterator[Any]:
    if hasattr(content, "untyped_storage"):
        yield content
    elif isinstance(content, (dict, list, tuple)) and depth < _DEPTH:
        named = content.items() if isinstance(content, dict) else enumerate(content)
        for name, one in list(named)[:_TENSORS]:
            if not _OF_EACH_RANK.search(str(name)):
                yield from _tensors(one, depth + 1)


def _versions(content: Any) -> list[int]:
    """Each change in place counts."""
    return [one._version for one in _tensors(content)]


def _print(content: Any) -> int:
    """What tells contents apart: shapes, and of what lies in main memory the first numbers."""
    said = []
    for one in _tensors(content):
        plain = one.device.type == "cpu" and not hasattr(one, "_local_tensor")
        said.append((tuple(one.shape), one.detach().reshape(-1)[:8].tolist() if plain and one.numel() else ()))
    return zlib.crc32(repr(said[:_TENSORS]).encode())


def _is_shard(tensor: Any) -> bool:
    """Of a distributed tensor this rank has a part only, and no more of it is written."""
    return any(one.is_shard() for one in getattr(tensor, "placements", None) or ())


def _newer(path: str) -> str:
    """A file beside it that is called the same but for its number, and was written later."""
    folder, name = os.path.split(path)
    alike, latest, found = re.sub(r"\d+", "#", name), os.stat(path).st_mtime + 0.01, ""
    with os.scandir(folder) as files:
        for file, _ in zip(files, range(_SIBLINGS), strict=False):
            if re.sub(r"\d+", "#", file.name) == alike and file.is_file() and file.stat().st_mtime > latest:
                latest, found = file.stat().st_mtime, file.name
    return found

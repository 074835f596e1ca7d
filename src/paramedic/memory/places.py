"""Where memory was taken, in words that an estimate and a snapshot share: a module's class, or a part of the step.

A snapshot knows lines of code and no names of modules, so blocks are put together by the class whose `forward` ran.
What the backward pass takes has no Python line, in either of them one place. No torch here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paramedic.memory.allocator import FREED, ROUND

BUILT = "built before the step"
BACKWARD = "the backward pass"
OPTIMIZER = "the optimizer's step"
COMMUNICATION = "communication"
ELSEWHERE = "outside the modules"
BEFORE = "taken before the recording began"
_AGAIN = ("unpack_hook", "recompute_fn")
"""In torch/utils/checkpoint.py: a forward that runs again belongs to the backward pass."""
_BUILDING = ("__init__", "_apply", "to", "cuda", "to_empty", "from_pretrained", "fully_shard", "reset_parameters")


@dataclass(frozen=True, slots=True)
class Forward:
    """The code of a module's forward."""

    module: str
    name: str
    """Of the class that defines it."""
    file: str
    first: int
    last: int

    @property
    def torchs(self) -> bool:
        return self.file.startswith("torch/")


def short(file: str) -> str:
    """From the package on: the same on two machines."""
    _, found, rest = file.replace("\\", "/").rpartition("-packages/")
    return rest if found else "/".join(file.split("/")[-2:])


def at_peak(trace: Any, kinds: Mapping[int, str], at: int, forwards: Sequence[Forward]) -> dict[str, int]:
    """Bytes alive at an event of a trace, by where they were taken."""
    by_name = {one.module: one for one in forwards}
    live: dict[int, tuple[int, str]] = {}
    for key, size, stream, moment in trace.events[: at + 1]:
        if size == FREED:
            live.pop(key, None)
        else:
            live[key] = (size, _of_moment(trace.moments[moment], kinds.get(key, ""), stream, by_name))
    sums: dict[str, int] = defaultdict(int)
    for size, place in live.values():
        sums[place] += rounded(size)
    return dict(sums)


def rounded(size: int) -> int:
    return -(-size // ROUND) * ROUND


def _of_moment(moment: Any, kind: str, stream: int, by_name: Mapping[str, Forward]) -> str:
    if kind == "communication" or stream or moment.operation == "resize_":
        return COMMUNICATION
    if moment.phase in ("backward", "optimizer"):
        return BACKWARD if moment.phase == "backward" else OPTIMIZER
    if moment.phase != "forward":
        return BUILT
    name = moment.module
    innermost = by_name.get(name)
    while True:
        found = by_name.get(name)
        if found is not None and not found.torchs:
            return found.name
        if not name:
            return innermost.name if innermost is not None and moment.module else ELSEWHERE
        name = name.rpartition(".")[0]


def _runs_backward(file: str, name: str) -> bool:
    again = file == "torch/utils/checkpoint.py" and name in _AGAIN
    return again or name == "_engine_run_backward" or "torch::autograd::Engine" in name


class Lines:
    """Frames → place. `frames` are innermost first, as a snapshot has them."""

    def __init__(self, forwards: Sequence[Forward]) -> None:
        self._forwards: dict[str, list[Forward]] = defaultdict(list)
        for one in {(one.file, one.first): one for one in forwards}.values():
            self._forwards[one.file].append(one)

    def place(self, frames: Any) -> str:
        frames = [frame for frame in frames if isinstance(frame, dict)] if isinstance(frames, list | tuple) else []
        lines = [(short(str(one.get("filename", ""))), str(one.get("name", "")), one.get("line")) for one in frames]
        backward = any(_runs_backward(file, name) for file, name, _ in lines)
        torchs, built = "", False
        python = [line for line in lines if line[0].endswith(".py")]
        for file, name, line in python:
            part = self._part(file, name)
            if part:
                return part
            found = self._forward(file, line)
            if found is not None and not found.torchs:
                return BACKWARD if backward else found.name
            torchs = torchs or (found.name if found is not None else "")
            built = built or name in _BUILDING
        if backward or not python:
            return BACKWARD
        return torchs or (BUILT if built else ELSEWHERE)

    def _part(self, file: str, name: str) -> str:
        if file.startswith("torch/optim/") or "bitsandbytes/optim/" in file:
            return OPTIMIZER
        if file.startswith(("torch/distributed/", "torch/nn/parallel/", "deepspeed/")):
            return BUILT if name in _BUILDING or "sharded_param" in name else COMMUNICATION
        return ""

    def _forward(self, file: str, line: Any) -> Forward | None:
        number = line if isinstance(line, int) else -1
        return next((one for one in self._forwards.get(file, ()) if one.first <= number <= one.last), None)


def names_of(forwards: Sequence[Forward]) -> dict[str, str]:
    """Class → its modules, as a pattern: `model.layers.*.mlp`, and how many more."""
    found: dict[str, list[str]] = defaultdict(list)
    for one in forwards:
        pattern = re.sub(r"\b[0-9]+\b", "*", one.module) or "the model"
        if pattern not in found[one.name]:
            found[one.name].append(pattern)
    return {
        name: patterns[0] + (f" and {len(patterns) - 1} more" if len(patterns) > 1 else "")
        for name, patterns in found.items()
    }

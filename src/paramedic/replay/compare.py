"""Where two recordings of the same job part: in each rank its first difference, and with whom it began."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paramedic.rank.score import Score, differing
from paramedic.rank.tape import opened
from paramedic.replay.reading import Recording

_KINDS = {
    "b": "batch", "l": "loss", "gr": "gradients", "pa": "state after the step", "op": "optimizer states after the step",
    "r": "random states",
}  # fmt: skip
_AFTER = tuple(_KINDS[kind] for kind in ("pa", "op", "r"))
"""What is told once the step has been counted."""
_LOCAL = ("call", "input", *_KINDS.values())
"""What a rank does by itself; an output comes from its peers."""
_MOST_OPS = 50_000_000
_OF_OPERATION = {"op": str, "h": str, "s": int, "m": str, "w": str, "n": int}


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference in the course of one rank."""

    rank: int
    kind: str
    step: int
    call: int | None = None
    group: str = ""
    op: str = ""
    detail: str = ""
    names: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        return self.kind in _LOCAL


@dataclass(frozen=True, slots=True)
class Operation:
    """The first operation of a replay that gave something else."""

    rank: int
    step: int
    op: str
    module: str
    way: str
    number: int


@dataclass(frozen=True, slots=True)
class Comparison:
    first: Mapping[int, Divergence]
    compared: Mapping[int, int]
    """Marks that both recordings have of each rank."""
    origins: tuple[int, ...] = ()
    operation: Operation | None = None
    skipped: tuple[str, ...] = field(default=())


def compare(a: Recording, b: Recording) -> Comparison:
    ranks = [rank for rank in a.ranks if rank in b.folders]
    first: dict[int, Divergence] = {}
    compared: dict[int, int] = {}
    for rank in ranks:
        found, compared[rank] = first_difference(a.scores[rank], b.scores[rank], rank)
        if found is not None:
            first[rank] = found
    origins = origin(first)
    operation = next((one for rank in origins if (one := first_operation(a, b, rank)) is not None), None)
    skipped = [f"rank {rank} is only in one of them" for rank in sorted(set(a.ranks) ^ set(b.ranks))]
    skipped += [f"rank {rank}: nothing that both have" for rank in ranks if not compared[rank]]
    return Comparison(first, compared, origins, operation, tuple(skipped))


def first_difference(a: Score, b: Score, rank: int) -> tuple[Divergence | None, int]:
    """Walks through what the rank did in A, and looks for the same in B."""
    calls = {(call["g"], call["q"]): call for one in b.calls.values() for call in one}
    count = 0
    counted: dict[tuple[str, int], int] = {}
    unseeded = _unseeded(a, b)
    names = {call["i"]: call for one in a.calls.values() for call in one}
    for line in a.lines:
        kind, step = line["k"], line.get("s", 0)
        if kind in ("c", "d"):
            call = names.get(line["i"])
            other = calls.get((call["g"], call["q"])) if call else None
            if call is None or other is None or (kind == "d" and "done" not in other):
                continue
            count += 1
            said = _differs(kind, call, other)
            if said:
                return Divergence(rank, said[0], step, call["i"], call["g"], call["op"], said[1]), count
        elif kind in _KINDS:
            place = counted[kind, step] = counted.get((kind, step), -1) + 1
            marks = b.marks.get((kind, step), [])
            if place >= len(marks):
                continue
            count += 1
            detail = _mark(kind, line, marks[place], unseeded)
            if detail is not None:
                which = _names(kind, step, a, b)
                return Divergence(rank, _KINDS[kind], step, detail=detail, names=which), count
    return None, count


def _differs(kind: str, call: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, str] | None:
    if kind == "d":
        return ("output", "") if call["done"].get("h") != other["done"].get("h") else None
    why = differing(dict(call), dict(other))
    if why:
        return "call", why
    return ("input", "") if call.get("h") != other.get("h") else None


def _mark(kind: str, line: Mapping[str, Any], other: Mapping[str, Any], unseeded: set[str]) -> str | None:
    if kind == "r":
        mine, theirs = line.get("of", {}), other.get("of", {})
        apart = [name for name in mine if name in theirs and mine[name] != theirs[name] and name not in unseeded]
        return f"of {', '.join(apart)}" if apart and not line.get("at") else None
    if line.get("h") == other.get("h"):
        return None
    return f"{line.get('v')} and {other.get('v')}" if kind == "l" else ""


def _unseeded(a: Score, b: Score) -> set[str]:
    """Python's and NumPy's generators differ from the start in every run of a program that does not seed them."""
    starts: list[dict[str, Any]] = [
        next((line.get("of", {}) for line in one.marks.get(("r", 0), ()) if line.get("at")), {}) for one in (a, b)
    ]
    return {name for name in ("python", "numpy") if starts[0].get(name) != starts[1].get(name)}


def _names(kind: str, step: int, a: Score, b: Score) -> tuple[str, ...]:
    mine, theirs = a.each(kind, step), b.each(kind, step)
    return tuple(name for name in mine if theirs and mine[name] != theirs.get(name))[:20]


def origin(first: Mapping[int, Divergence]) -> tuple[int, ...]:
    """Who differed by his own doing, the earliest of them; where only outputs differ, who got another one."""
    own = [one for one in first.values() if one.is_local]
    if own:
        step = min(one.step for one in own)
        return tuple(sorted(one.rank for one in own if one.step == step))
    if not first:
        return ()
    step = min(one.step for one in first.values())
    return tuple(sorted(one.rank for one in first.values() if one.step == step))


# -- operations ----------------------------------------------------------------------------------------------------


def first_operation(a: Recording, b: Recording, rank: int) -> Operation | None:
    """Both are replays that were made with --ops."""
    files = [os.path.join(one.folders[rank], "ops.seg") for one in (a, b)]
    if not all(os.path.isfile(file) and not os.path.islink(file) for file in files):
        return None
    mine, theirs = map(_operations, files)
    for one, other in zip(mine, theirs, strict=False):
        if (one.get("op"), one.get("h")) != (other.get("op"), other.get("h")):
            return Operation(rank, one["s"], one["op"], one["m"], one["w"], one["n"])
    return None


def _operations(path: str) -> Iterator[dict[str, Any]]:
    with opened(path) as file:
        for _, line in zip(range(_MOST_OPS), file, strict=False):
            try:
                said = json.loads(line)
            except ValueError:
                return
            if not isinstance(said, dict) or not all(isinstance(said.get(n), k) for n, k in _OF_OPERATION.items()):
                return
            yield said


def places(divergences: Sequence[Divergence]) -> str:
    """Ranks that differ first at the same place, in one phrase."""
    one = divergences[0]
    call = f"{one.kind} of call {one.call} ({one.op}, group {one.group})" if one.call is not None else one.kind
    return f"{call}, step {one.step + (one.kind not in _AFTER)}"

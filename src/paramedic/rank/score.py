"""What a recording says must happen, in the order in which the program will ask for it."""

from __future__ import annotations

import json
import os
from typing import Any

from .prints import of_bytes
from .tape import VERSION, Segments, opened, read_log, unpacked

_NEEDED: dict[str, dict[str, Any]] = {
    "c": {"i": int, "g": str, "q": int, "op": str, "in": list, "out": list}, "d": {"i": int}, "g": {"g": str},
    "s": {"i": int}, "state": {"i": int, "h": str, "rng": str}, "b": {"h": str, "t": list},
    "l": {"h": str, "v": (int, float, str)}, "gr": {"h": str}, "pa": {"h": str}, "op": {"h": str}, "r": {"of": dict},
    "names": {"groups": dict, "shards": dict, "places": dict, "transient": list},
}  # fmt: skip
_COMPARED = ("in", "out", "reduce", "root", "peer", "tag", "splits")


class Score:
    """One rank's recording, read whole; payloads stay on disk until they are played."""

    def __init__(self, folder: str) -> None:
        with opened(os.path.join(folder, "head.json")) as file:
            self.head: dict[str, Any] = json.load(file)
        if self.head.get("paramedic_recording") != VERSION:
            raise ValueError(f"a recording of version {self.head.get('paramedic_recording')!r}, not {VERSION}")
        self.lines, self.damage = read_log(os.path.join(folder, "log.tape"))
        self.segments = Segments(folder)
        self.calls: dict[str, list[dict[str, Any]]] = {}
        self.groups: dict[str, dict[str, Any]] = {}
        self.steps: dict[int, dict[str, Any]] = {0: {"i": 0}}
        self.states: dict[int, dict[str, Any]] = {}
        self.marks: dict[tuple[str, int], list[dict[str, Any]]] = {}
        """Batches, losses, gradients, parameters and random states, by their kind and step."""
        self.replicas: dict[str, dict[str, str]] = {}
        """What must be equal on all ranks of a group: what it is → its name in this rank's state."""
        self.shards: dict[str, Any] = {}
        """Where a rank's part of a distributed parameter begins, and its shape."""
        self.parameters: dict[str, str] = {}
        """By its optimizer and the place in it."""
        self.transient: set[str] = set()
        """Buffers that are in no checkpoint."""
        by_number: dict[int, dict[str, Any]] = {}
        for number, line in enumerate(self.lines, 1):
            _check(number, line)
            self._sort(line, by_number)

    def _sort(self, line: dict[str, Any], by_number: dict[int, dict[str, Any]]) -> None:
        kind, step = line["k"], line.get("s", 0)
        if kind == "c":
            by_number[line["i"]] = line
            self.calls.setdefault(line["g"], []).append(line)
        elif kind == "d" and line["i"] in by_number:
            by_number[line["i"]]["done"] = line
        elif kind == "g":
            self.groups[line["g"]] = line
        elif kind == "s":
            self.steps[step] = line
        elif kind == "state":
            self.states[step] = line
        elif kind == "names":
            self.replicas = {group: _named(names) for group, names in line["groups"].items()}
            self.shards, self.parameters = line["shards"], _named(line["places"])
            self.transient = {name for name in line["transient"] if isinstance(name, str)}
        else:
            self.marks.setdefault((str(kind), step), []).append(line)

    @property
    def last_step(self) -> int:
        return max(self.steps)

    @property
    def total(self) -> int:
        return sum(len(one) for one in self.calls.values())

    def has(self, line: dict[str, Any]) -> bool:
        """Whether the payload is really there."""
        return bool(line.get("p")) and line.get("h") in self.segments

    def is_whole_from(self, step: int) -> bool:
        """Every payload after that step is there."""
        return all(
            self.has(call["done"])
            for one in self.calls.values()
            for call in one
            if call["s"] >= step and "done" in call and call["out"] and "h" in call["done"]
        )

    def start(self) -> int | None:
        """The first step from which all is there: 0, or one with a state; None when there is none."""
        if self.is_whole_from(0):
            return 0
        for step in sorted(self.states):
            if self.states[step]["h"] in self.segments and self.is_whole_from(step):
                return step
        return None

    def first_bad(self) -> int | None:
        """The step in which something was not finite for the first time."""
        return next((line.get("s", 0) for line in self.lines if is_bad(line)), None)

    def each(self, kind: str, step: int) -> dict[str, str]:
        """The print of every tensor by its name."""
        for line in self.marks.get((kind, step), ()):
            if self.has(line):
                data = self.segments.read(line["h"])
                return _named(json.loads(data)) if of_bytes(data) == line["h"] else {}
        return {}

    def random(self, line: dict[str, Any], key: str = "h") -> dict[str, bytes] | None:
        return unpacked(self.segments.read(line[key])) if line.get(key) in self.segments else None


def _named(found: Any) -> dict[str, str]:
    return {name: key for name, key in found.items() if isinstance(key, str)} if isinstance(found, dict) else {}


def is_bad(line: dict[str, Any]) -> bool:
    """A value in it was not finite."""
    return bool(line.get("nf")) or (line["k"] == "l" and isinstance(line["v"], str))


def _check(number: int, line: dict[str, Any]) -> None:
    """Whatever is used of it later is there, and is what it should be."""
    kind, step = line.get("k"), line.get("s", 0)
    wrong = [name for name, kinds in _NEEDED.get(str(kind), {}).items() if not isinstance(line.get(name), kinds)]
    if not isinstance(kind, str):
        wrong.append("k")
    if not isinstance(step, int) or step < 0:
        wrong.append("s")
    if not isinstance(line.get("h"), (str, type(None))):
        wrong.append("h")
    if wrong:
        raise ValueError(f"line {number} of its log is of no use: {', '.join(wrong)}")


def differing(recorded: dict[str, Any], said: dict[str, Any]) -> str:
    """In what two calls differ besides their values; nothing when they fit."""
    if recorded["op"] != said["op"]:
        return f"{said['op']} instead of {recorded['op']}"
    for name in _COMPARED:
        if recorded.get(name) != said.get(name):
            return f"{name} {said.get(name)} instead of {recorded.get(name)}"
    return ""

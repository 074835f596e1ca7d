"""What `paramedic record` left of a rank: its log, told in one Event. Payloads are not looked at here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from paramedic.collect.identity import MAX_WORLD_SIZE
from paramedic.collect.logs import LogRead
from paramedic.model import Event, Fact, Skipped, Source
from paramedic.redact import clipped

MAX_RECORDING = 128 << 20
_KEPT = 400
"""Steps of which marks are kept, the first and the last ones."""
_CALLS = 3_000
_FAULTS = {
    "gap": "the backend made calls that were not seen, in group ",
    "off": "it ended early: ",
    "refused": "it cannot be replayed: the program used ",
    "full": "no disk space was left for payloads",
}
SAME_FOR_ALL = ("allreduce", "allreduce_coalesced", "broadcast", "allgather", "all_gather_single")
"""What every member of the group gets alike."""


def is_recording(name: str) -> bool:
    return name.endswith("/log.tape")


def read_recording(data: bytes, source: Source) -> LogRead:
    """A line that is not whole ends it, as after a kill."""
    skipped: list[Skipped] = []
    if len(data) > MAX_RECORDING:
        skipped.append(Skipped(source.id, f"longer than {MAX_RECORDING >> 20} MiB: the rest was not read"))
    lines = list(_lines(data[:MAX_RECORDING]))
    head = lines[0] if lines and lines[0].get("k") == "head" else {}
    rank, size = head.get("rank"), head.get("world_size")
    if not _is_number(rank, MAX_WORLD_SIZE):
        return LogRead(source, skipped=[Skipped(source.id, "not the log of a rank as `paramedic record` writes it")])
    host = clipped(head["host"], 200) if isinstance(head.get("host"), str) else None
    source = replace(source, rank=rank, host=host, lines=len(lines), bytes=len(data))
    said = _told(lines)
    faults = [f"the recording is not whole: {_FAULTS[kind]}{why}" for kind, why in said.pop("faults")]
    skipped += [Skipped(source.id, why) for why in faults]
    text = f"rank {rank}: {said['steps']} steps and {said['calls']} calls recorded"
    if bad := said["first_bad"]:
        text += f"; not finite first: {bad['what']} {bad['op']}, step {bad['step'] + 1}".replace(" ,", ",")
    event = Event(source.id, 1, "recording", text, 1, rank, host, source.attempt, fields={"said": json.dumps(said)})
    facts = [Fact("world_size", size, source.id, 1, rank, host)] if _is_number(size, MAX_WORLD_SIZE) else []
    return LogRead(source, [event], facts=facts, skipped=skipped, rank_is_sure=True)


def _lines(data: bytes) -> Iterator[dict[str, Any]]:
    for raw in data.split(b"\n"):
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            return
        if not isinstance(line, dict) or not isinstance(line.get("k"), str):
            return
        yield line


def _told(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What detectors compare between ranks, in bounds."""
    calls: dict[int, Mapping[str, Any]] = {}
    said: dict[str, Any] = {
        "steps": 0, "calls": 0, "groups": {}, "replicas": [], "batches": [], "random": [], "results": [], "faults": [],
        "first_bad": None, "end": "",
    }  # fmt: skip
    for line in lines:
        kind = line["k"]
        step = int(line["s"]) if _is_number(line.get("s"), 1 << 53) else 0
        if kind == "c" and _is_number(line.get("i"), 1 << 53):
            calls[line["i"]] = line
            said["calls"] += 1
        _add(said, kind, step, line, calls)
        if said["first_bad"] is None and (line.get("nf") or (kind == "l" and isinstance(line.get("v"), str))):
            said["first_bad"] = _bad(kind, step, line, calls)
    for name in ("replicas", "batches", "random"):
        said[name] = _ends(said[name], _KEPT)
    said["results"] = said["results"][-_CALLS:]
    return said


def _add(
    said: dict[str, Any], kind: str, step: int, line: Mapping[str, Any], calls: Mapping[int, Mapping[str, Any]]
) -> None:
    if kind == "s":
        said["steps"] = max(said["steps"], step)
    elif kind == "g":
        ranks = [one for one in _list(line.get("ranks")) if _is_number(one, MAX_WORLD_SIZE)]
        said["groups"][_text(line.get("g"))] = {"ranks": ranks, "desc": _text(line.get("desc"))}
    elif kind == "pa" and isinstance(line.get("rep"), dict):
        said["replicas"] += [[step, _text(group), _text(key)] for group, key in line["rep"].items()]
    elif kind == "b":
        said["batches"].append([step, _text(line.get("h"))])
    elif kind == "r" and isinstance(line.get("of"), dict) and not line.get("at"):
        said["random"].append([step, _text(line["of"].get("torch"))])
    elif kind in ("gap", "off", "refused", "full"):
        said["faults"].append([kind, _text(line.get("why")) or _text(line.get("g"))])
    elif kind == "end":
        said["end"] = _text(line.get("text"))
    elif kind == "d" and (call := _call(line, calls)).get("op") in SAME_FOR_ALL:
        said["results"].append([_text(call.get("g")), call.get("q"), step, _text(call.get("op")), _text(line.get("h"))])


def _call(line: Mapping[str, Any], calls: Mapping[int, Mapping[str, Any]]) -> Mapping[str, Any]:
    return calls.get(line["i"], {}) if _is_number(line.get("i"), 1 << 53) else {}


def _bad(kind: str, step: int, line: Mapping[str, Any], calls: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    call = _call(line, calls) if kind in ("c", "d") else {}
    what = {"c": "input", "d": "output", "b": "batch", "l": "loss"}.get(kind, "")
    return {"what": what, "step": step, "op": _text(call.get("op")), "call": line.get("i"), "q": call.get("q"),
            "group": _text(call.get("g"))}  # fmt: skip


def _ends(values: list[Any], most: int) -> list[Any]:
    return values if len(values) <= 2 * most else values[:most] + values[-most:]


def _is_number(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _text(value: Any) -> str:
    return clipped(value, 200) if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

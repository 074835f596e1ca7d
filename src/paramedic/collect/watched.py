"""What `paramedic run` leaves in its folder: each rank's last state, its black box, and what the watcher itself saw."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from paramedic.collect.identity import MAX_WORLD_SIZE
from paramedic.collect.logs import LogRead
from paramedic.model import Event, Fact, Skipped, Source
from paramedic.redact import clipped
from paramedic.regex import regex

MAX_WATCHED = 8 << 20
NO_CALLS = "no collective was called from Python"
"""Of most programs, whose wrappers call them below Python: nobody need be told."""
_MAX_TEXT, _MAX_ITEMS, _MAX_DEPTH = 400, 512, 8
_MAGIC = b"paramedic-box 1\n"
_SLOT = 256
_MAX_BOX = len(_MAGIC) + 4096 * _SLOT
_NUMBER = regex(r"[0-9]{1,15}")
_CALL = 8  # columns of a slot: number, group, number in the group, operation, sizes, type, peer, place


def is_watched(name: str) -> bool:
    return name.endswith((".watch.json", ".box"))


def read_watched(data: bytes, source: Source) -> LogRead:
    """One Event a file; a file that is not whole is said to be so."""
    if data.startswith(_MAGIC):
        return _box(data[:_MAX_BOX], replace(source, kind="box"))
    source = replace(source, kind="watch", bytes=len(data))
    try:
        state = _cleaned(json.loads(data))
    except (ValueError, RecursionError):
        state = None
    if not isinstance(state, dict):
        return _refused(source)
    if "paramedic_job" in state:
        return _job(state, source)
    if "paramedic_gpus" in state:
        return _gpus(state, source)
    rank, size = state.get("rank"), state.get("world_size")
    if "paramedic_watch" not in state or not _is_rank(rank):
        return _refused(source)
    source = replace(source, rank=rank, host=_text(state.get("host")) or None, attempt=_attempt(state), lines=1)
    event = Event(
        source.id,
        1,
        "watch",
        _said(state),
        1,
        rank,
        source.host,
        source.attempt,
        _nanoseconds(state),
        fields=_kept(state),
    )
    facts = [Fact(name, value, source.id, 1, rank, source.host) for name, value in _facts(state)]
    if _is_rank(size):
        facts.append(Fact("world_size", size, source.id, 1, rank, source.host))
    return LogRead(source, [event], facts=facts, rank_is_sure=True)


def _kept(state: dict[str, Any]) -> dict[str, str]:
    """As one text: a Run's fields are plain values."""
    return {"said": json.dumps(state)}


def _refused(source: Source) -> LogRead:
    return LogRead(source, skipped=[Skipped(source.id, "not a state as `paramedic run` writes it, or not a whole one")])


def _job(state: dict[str, Any], source: Source) -> LogRead:
    suspected = state.get("suspected")
    why = _text(suspected.get("why")) if isinstance(suspected, dict) else ""
    text = (
        f"the watcher: {why} for {suspected.get('quiet_s')} s" if isinstance(suspected, dict) else "the watcher's notes"
    )
    source = replace(source, rank=None, lines=1)
    return LogRead(
        source, [Event(source.id, 1, "watch", text, 1, host=_text(state.get("host")) or None, fields=_kept(state))]
    )


def _gpus(state: dict[str, Any], source: Source) -> LogRead:
    found = state.get("gpus")
    source = replace(source, rank=None, host=_text(state.get("host")) or None, lines=1)
    text = f"{len(found) if isinstance(found, list) else 0} GPUs of {source.host or 'a node'}, as their driver saw them"
    return LogRead(source, [Event(source.id, 1, "gpus", text, 1, host=source.host, fields=_kept(state))])


def _facts(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    groups, versions = state.get("groups"), state.get("versions")
    for group in groups if isinstance(groups, list) else ():
        if isinstance(group, dict) and isinstance(group.get("ranks"), list):
            yield "group", json.dumps(group)
    for name, value in versions.items() if isinstance(versions, dict) else ():
        yield f"version {name}", value


def _said(state: Mapping[str, Any]) -> str:
    """One line for people."""
    now = state.get("now")
    now = now if isinstance(now, dict) else {}
    said = _text(now.get("said")).split("\t")
    call = f"{said[2]} at {said[-1]}" if len(said) == _CALL - 1 else said[0]
    phase = {"collective": "waits in a collective", "data": "waits for data", "other": "runs its own code"}
    doing = phase.get(_text(now.get("phase")), _text(now.get("phase")))
    rank, steps, seconds = state.get("rank"), state.get("steps"), now.get("for_s")
    where = f" ({call})" if call else ""
    return f"rank {rank}: {_text(state.get('stage'))}, {steps} steps, {doing}{where} for {seconds} s"


def _box(data: bytes, source: Source) -> LogRead:
    """Calls in the order in which they were made; a slot that was being written is left out."""
    calls: list[tuple[int, str, bool]] = []
    for slot in _slots(data[len(_MAGIC) :]):
        state, columns = slot[:1], slot[1:].decode("utf-8", "replace").split("\t")
        if state in (b"B", b"D", b"R") and len(columns) == _CALL and _NUMBER.fullmatch(columns[0]):
            calls.append((int(columns[0]), "\t".join(columns[1:]), state == b"D"))
    calls.sort()
    if not calls:
        return LogRead(replace(source, bytes=len(data)), skipped=[Skipped(source.id, NO_CALLS)])
    source = replace(source, lines=len(calls), bytes=len(data))
    text = clipped(calls[-1][1].replace("\t", " "), _MAX_TEXT)
    made = "\n".join(("D\t" if done else "B\t") + clipped(said, _MAX_TEXT) for _, said, done in calls)
    return LogRead(source, [Event(source.id, 1, "calls", text, len(calls), source.rank, fields={"made": made})])


def _slots(data: bytes) -> list[bytes]:
    """Of one size in a mapped file; in one that people write, a line each."""
    if b"\0" not in data:
        return data.split(b"\n")
    return [data[at : at + _SLOT].rstrip(b"\0") for at in range(0, len(data), _SLOT)]


def _cleaned(value: Any, depth: int = 0) -> Any:
    """Strings redacted and cut, lists and depth bounded: another's file may hold anything."""
    if isinstance(value, str):
        return clipped(value, _MAX_TEXT)
    if isinstance(value, list):
        return [_cleaned(one, depth + 1) for one in value[:_MAX_ITEMS]] if depth < _MAX_DEPTH else []
    if isinstance(value, dict):
        items = list(value.items())[: _MAX_ITEMS * 16] if depth < _MAX_DEPTH else []
        return {clipped(str(name), _MAX_TEXT): _cleaned(one, depth + 1) for name, one in items}
    if isinstance(value, float) and not abs(value) < 1e300:
        return None
    return value if isinstance(value, (bool, float, type(None))) or abs(value) < 1 << 63 else None


def _is_rank(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_WORLD_SIZE


def _attempt(state: Mapping[str, Any]) -> int:
    value = state.get("attempt")
    return value if isinstance(value, int) and 0 <= value < 1_000 else 0


def _nanoseconds(state: Mapping[str, Any]) -> int | None:
    at = state.get("at")
    return int(at * 1e9) if isinstance(at, (int, float)) and 0 < at < 1e11 else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""

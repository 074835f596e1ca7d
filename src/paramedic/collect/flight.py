"""Flight-recorder dumps → what each rank called on each process group.

A pickle is a program: this one may build nothing but plain values. What it holds is taken column by column, for a job
has millions of entries; of each group there remain a table of the distinct calls and the order in which they came.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, BinaryIO

from paramedic.collect.archives import Input
from paramedic.collect.columns import Columns, NotADump, Row, columns, ranges
from paramedic.collect.logs import LogRead
from paramedic.collect.plain_pickle import NotPlain, load
from paramedic.collect.streams import SafeStream
from paramedic.garbage import no_collections
from paramedic.model import Event, Fact, Skipped, Source, is_own
from paramedic.redact import clipped
from paramedic.regex import regex

MOST_BYTES = 256 << 20
HEAD = 2048
_PIECE = 1 << 20
_MOST_RANKS_IN_FILE = 4096
_MOST_GROUPS = 4_096  # of one rank: the recorder keeps 2,000 calls unless told otherwise
_MOST_COUNTS = 64
_MAX_TEXT = 200
_MAX_SITE = 500
_OWN_FRAMES = 2
_WORDS = (b"pg_config", b"pg_status", b"nccl_version", b"comm_lib_version", b"profiling_name", b"record_id")
_NAMED = regex(r"(?:trace|dump|flight|recorder)\w{0,40}$|(?:^|[._-])fr_", re.I)
_NUMBER = regex(r"(?:^|[._-])[A-Za-z]{0,20}(?P<rank>\d{1,6})(?:\.(?:pkl|pickle|json|bin|trace|dump))?$")
_NUMBERS = regex(r"\d{1,7}")
_RESERVED = str.maketrans("|\n\r\t", "    ")


def head_of(item: Input) -> bytes:
    """The first bytes, which stay to be read."""
    raw = getattr(item.stream, "raw", None)
    if isinstance(raw, SafeStream):
        return raw.peek(HEAD)
    peek = getattr(item.stream, "peek", None)
    return bytes(peek(HEAD)) if peek else b""


def is_dump(name: str, head: bytes) -> bool:
    """By its content; a pickle without the usual words is looked at if it is called like a dump."""
    if head[:1] == b"\x80" and (len(head) == 1 or b"\x02" <= head[1:2] <= b"\x05"):
        return any(word in head for word in _WORDS) or bool(_NAMED.search(name.rsplit("/", 1)[-1]))
    return head.lstrip()[:1] == b"{" and sum(b'"%b"' % word in head for word in (*_WORDS, b"entries")) >= 2


def read_dump(item: Input, source: Source) -> LogRead:
    """One rank's dump; or several in one file, one JSON object a line, each with its `rank`."""
    source = replace(source, kind="trace", rank=_rank_in_name(item.name) if source.rank is None else source.rank)
    whose = f"the recording of rank {source.rank}" if source.rank is not None else "a recording"
    data = b"".join(_pieces(item.stream))
    try:
        if len(data) > MOST_BYTES:
            raise NotADump(f"is larger than {MOST_BYTES >> 20} MiB")
        log = LogRead(replace(source, bytes=len(data)))
        with no_collections():
            dumps = [load(data)] if data[:1] == b"\x80" else list(_from_json(data))
            for dump in dumps[:_MOST_RANKS_IN_FILE]:
                _add(log, dump, alone=len(dumps) == 1)
            del dump, dumps
    except (NotPlain, NotADump) as why:
        return LogRead(source, skipped=[Skipped(item.name, f"{whose} {why}; nothing of it was used")])
    return log


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    left = MOST_BYTES + 1
    while left > 0 and (piece := stream.read(min(_PIECE, left))):
        left -= len(piece)
        yield piece


def _rank_in_name(name: str) -> int | None:
    found = _NUMBER.search(name.rsplit("/", 1)[-1])
    return int(found["rank"]) if found else None


def _from_json(data: bytes) -> Iterator[Any]:
    text = data.decode("utf-8", "replace")
    try:
        yield json.loads(text)
        return
    except (ValueError, RecursionError):
        lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) < 2:
        raise NotADump("is cut off or damaged")
    for line in lines:
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            raise NotADump("is cut off or damaged") from None


def _add(log: LogRead, dump: Any, alone: bool) -> None:
    if not isinstance(dump, dict) or not isinstance(dump.get("entries", []), list):
        raise NotADump("is no flight-recorder dump")
    said = dump.get("rank")
    rank = said if isinstance(said, int) and 0 <= said < 1 << 20 else log.source.rank if alone else None
    if rank is None:
        raise NotADump("does not say whose it is: its name has no rank")
    entries = dump.get("entries", [])
    config = _config(dump.get("pg_config"))
    source = replace(log.source, rank=rank) if alone else log.source
    log.source = replace(source, lines=source.lines + max(len(entries), 1))
    log.rank_is_sure = True
    for _, desc, members in config.values():
        if desc == "default_pg" and members:
            log.facts.append(Fact("world_size", max(members) + 1, source.id, rank=rank))
    for number, fields in enumerate(_groups(columns(entries), config, _status(dump.get("pg_status")))):
        if number == _MOST_GROUPS:
            log.skipped.append(Skipped(source.id, f"more than {_MOST_GROUPS:,} process groups: the rest was not read"))
            break
        text = _told(fields)
        log.events.append(
            Event(source.id, len(log.events) + 1, "trace", text, rank=rank, host=source.host, fields=fields)
        )


# -- process groups ------------------------------------------------------------------------------------------------

_Config = Mapping[str, tuple[str, str, tuple[int, ...]]]


def _config(said: Any) -> _Config:
    """Name → (name, description, members). Gloo's has one group without a name or members, which says nothing."""
    found: dict[str, tuple[str, str, tuple[int, ...]]] = {}
    for name, about in list(said.items())[:10_000] if isinstance(said, dict) else ():
        if isinstance(about, dict) and name:
            desc, ranks = about.get("desc", ""), about.get("ranks", "")
            if isinstance(ranks, str):
                members = _members(ranks)
            else:
                listed = ranks if isinstance(ranks, list | tuple) else ()
                members = tuple(sorted({rank for rank in listed if type(rank) is int and rank >= 0}))
            found[_short(name)] = _short(name), _short(desc), members
    return found


@lru_cache(maxsize=256)
def _members(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(number) for number in _NUMBERS.findall(text)}))


_Status = Mapping[str, tuple[int, int]]


def _status(said: Any) -> _Status:
    """The last collective that a group enqueued, and the last that it completed, by the group's number on this rank."""
    found = {}
    for number, about in list(said.items())[:10_000] if isinstance(said, dict) else ():
        if isinstance(about, dict):
            told = (about.get(f"last_{what}_collective") for what in ("enqueued", "completed"))
            last, completed = map(_whole, told)
            found[str(number)[:20]] = last, completed
    return found


def _whole(said: Any) -> int:
    if isinstance(said, str) and _NUMBERS.fullmatch(said):  # in JSON
        return int(said)
    return said if type(said) is int else -1


def _groups(recorded: Columns, config: _Config, status: _Status) -> Iterator[dict[str, Any]]:
    used = set()
    nothing = -1, -1
    for group in recorded.groups():
        name, _, desc = group.name.partition("\t")
        used.add(name := _short(name))
        _, known_desc, members = config.get(name, (name, "", ()))
        rows = {row: _row(recorded.row(row)) for row in group.rows}
        last, completed = status.get(group.number, nothing) if not group.peers else nothing  # it counts sends, too
        last = group.last_seq if group.calls or group.peers else last
        yield {
            **_head(name, desc or known_desc, members, recorded.wrapped, last),
            "number": group.number,
            "completed": completed,
            "backend": next(iter(rows.values()), ("",))[0],
            "seqs": group.seqs,
            **_table(group.calls, ["\t".join([rows[row][1] for row in together]) for together in group.table]),
            "open": group.open,
            "open_at": group.open_at,
            "last_at": group.last_at,
            "peers": "\n".join(_row(recorded.row(row))[1] for row in group.peers),
            "peers_done": group.peers_done,
            "peers_open": group.peers_open,
            "posted": group.posted,
            "sent": group.sent,
            "started": group.started,
            "timed": recorded.timed,
            "moves": recorded.moves,
            "usual": group.usual,
            "durations": group.durations,
            "span_ms": group.span_ms,
            "age_ms": group.age_ms,
            "timeout_ms": group.timeout_ms,
            "since_s": group.since_s,
        }
    counts = "\n".join(f"{number} {last} {completed}" for number, (last, completed) in [*status.items()][:_MOST_COUNTS])
    for name, desc, members in config.values():
        if name not in used:
            last, completed = status.get("0", nothing) if desc == "default_pg" else nothing
            yield {**_head(name, desc, members, recorded.wrapped, last), "completed": completed, "counts": counts}
    if not used and not config:
        yield _head("", "", (), recorded.wrapped, -1)


def _table(calls: str, lines: list[str]) -> dict[str, str]:
    """Stacks that are alike but not one in the file come as several lines: they are made one here."""
    distinct = {line: str(number) for number, line in enumerate(dict.fromkeys(lines))}
    if len(distinct) < len(lines):
        calls = " ".join([distinct[lines[int(number)]] for number in calls.split(" ")])
    return {"calls": calls, "table": "\n".join(distinct)}


def _head(name: str, desc: str, members: Iterable[int], wrapped: bool, last: int) -> dict[str, Any]:
    listed = ranges(members)
    return {"group": name, "desc": _short(desc), "members": listed, "wrapped": wrapped, "last": last}


# -- calls ---------------------------------------------------------------------------------------------------------


def _row(call: Row) -> tuple[str, str]:
    """(backend, `all_reduce|4x2|4x2|Float|Float|train.py:3 in step`); a `?` where older calls were not kept in full."""
    backend, _, op = call.name.rpartition(":")
    outs = "?" if call.outs is None else _sizes(call.outs)
    parts = (op, _sizes(call.ins), outs, call.in_types, call.out_types)
    row = "|".join([_clean(part, _MAX_TEXT) for part in parts])
    return _clean(backend, 40), f"{row}|{_clean(_site(call.frames), _MAX_SITE)}"


def _sizes(sizes: Iterable[Iterable[Any]]) -> str:
    return ",".join(["x".join(map(str, one)) or "-" for one in sizes])


@lru_cache(maxsize=4096)
def _clean(text: str, most: int) -> str:
    return clipped(text.translate(_RESERVED), most)


def _short(said: Any) -> str:
    return _clean(str(said)[:_MAX_TEXT] if isinstance(said, str | int) else "", _MAX_TEXT)


def _site(frames: Sequence[Any]) -> str:
    """Where the user's own code calls, and who calls that; else the innermost frame."""
    shown: list[str] = []
    own: list[str] = []
    for frame in frames:  # the innermost comes first
        if isinstance(frame, dict) and len(own) < _OWN_FRAMES:
            file, line, name = frame.get("filename"), frame.get("line"), frame.get("name")
            if isinstance(file, str) and isinstance(line, int) and isinstance(name, str):
                mine = is_own(file) or not file.startswith(("/", "<frozen"))  # started as `python train.py`
                if mine or not shown:
                    shown.append(f"{file[:400]}:{line} in {name[:80]}")
                own += shown[-1:] if mine else []
    return " ← ".join(own or shown[:1])


def _told(fields: Mapping[str, Any]) -> str:
    """One line for people: which group, how far, and where it stands."""
    desc = fields["desc"]
    group = f"group {fields['group']}" + (f" ({desc})" if desc not in ("", "undefined") else "")
    if not fields.get("calls"):
        return f"{group}: no collective recorded"
    calls = fields["calls"].split(" ")
    last = fields["table"].split("\n")[int(calls[-1])].split("|")
    size = f" of {last[1]} {last[3]}" if last[1] else ""
    state = "not finished" if fields["open"] else "finished"
    at = f" at {last[-1]}" if last[-1] else ""
    return (
        f"{group}: {len(calls)} collectives recorded, the last is number {fields['last']}, {last[0]}{size}{at}, {state}"
    )

"""Logs as clouds export them (CloudWatch, Google Cloud Logging, Vertex AI) → what each stream said, in order."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from paramedic.redact import redact
from paramedic.regex import regex

MOST = 32 << 20
"""Bytes; as text they take up to four times as much."""
_MOST_STREAMS, _ANYWAY, _EACH = 512, 64, 1 << 14
"""Each is read as a log of its own, which takes milliseconds: no job has more hosts that somebody exports at once, and
from some dozens on each must say so many bytes."""
_OTHERS = "other streams"
"""What is told by more streams than that; no name of a stream has a space."""
_MOST_ENTRY = 2 << 20
"""Characters of an entry: clouds cut what they are told at 256 KiB."""
_MOST_SAID = 2 * MOST
"""Bytes of all streams with the times that are put before each line: more than half of it would be times."""
_MOST_STRANGE = 1_000
"""Things in a list of entries that are none: then it is a list of something else."""
_LONGEST = 200
_HEAD = 400
_LONGEST_STAMP = 16
"""Digits: milliseconds since 1970 have thirteen, nanoseconds would have nineteen."""
_LONGEST_NAME = 512
"""No cloud has longer names of streams."""
_JSON = regex(
    rb'\s{0,200}[\[{](?s:.){0,400}?"(?:logStreamName|ingestionTime|textPayload|insertId|jsonPayload)"\s{0,20}:'
)
_ROWS = regex(rb"\d{13}\t[^\t\n]{1,400}\t")
_STREAMED = regex(rb"[A-Z]{4,9}\t20\d\d-\d\d-\d\d [\d:]{8} [+-]\d{4}\t[\w.-]{1,80}\t")
"""`gcloud ai custom-jobs stream-logs`: severity, time, task and message."""
_TITLES = regex(rb'"?@?timestamp"?,"?@?(?:message|logStream)"?[,\r\n]', re.I)
_STARTED = regex(r"-\d{10,13}$")
"""SageMaker puts behind the name of a host when it was started."""
_ODD = regex(r"[^\w.-]+")
_EVENTS = regex(r'(?<!\\)"events"\s{0,20}:\s{0,20}\[')
_BETWEEN = regex(r"[\s,]*+")
_BREAKS = r"\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029"
_LINE = regex(rf"([^{_BREAKS}]++)(?:\r\n|[{_BREAKS}])?|\r\n|[{_BREAKS}]")
"""As `splitlines`, one at a time."""
_WHOLE = regex(r"[^\n]*+\n|[^\n]++")
_FILLED = regex(r"[^\n]+")
_LABELS = ("task_name", "pod_name", "pod", "instance", "instance_id", "container_name", "node_name")


class _Entry(NamedTuple):
    stream: str
    at: str | int | float
    text: str


def is_export(head: bytes) -> bool:
    head = head.removeprefix(b"\xef\xbb\xbf")
    return bool(_JSON.match(head) or _ROWS.match(head) or _STREAMED.match(head) or _TITLES.match(head))


def streams(data: bytes, cut: list[str] | None = None) -> dict[str, bytes]:
    """By their short names; empty: not an export after all. What was left out is said in `cut`."""
    text = data.decode("utf-8-sig", "replace")
    entries = _of_json(text) if text[:_HEAD].lstrip()[:1] in ("{", "[") else _of_table(text)
    found: dict[str, bytearray] = {}
    left: list[str] = cut if cut is not None else []
    size, most = 0, min(_MOST_STREAMS, _ANYWAY + len(data) // _EACH)
    for entry in entries:
        name = entry.stream
        if name not in found and len(found) >= most:
            if _OTHERS not in found:
                left.append(f"of this export {most:,} streams were read by themselves, the others as one log")
            name = _OTHERS
        stamp = _stamp(entry.at)
        lines = found.setdefault(name, bytearray())
        for line in _LINE.finditer(entry.text):
            told = f"{stamp}{line[1] or ''}\n".encode("utf-8", "replace")
            size += len(told)
            if size > _MOST_SAID:
                left.append(f"of this export's lines only {_MOST_SAID >> 20} MiB were read")
                return {name: bytes(lines) for name, lines in found.items()}
            lines += told
    return {name: bytes(lines) for name, lines in found.items()}


def _of_json(text: str) -> Iterator[_Entry]:
    begin = _first_entry(text)
    for event in _line_by_line(text, 0) if begin is None else _entries(text, begin):
        said = _said(event) if isinstance(event, dict) else None
        if said is not None:
            yield _Entry(_stream(event), event.get("timestamp", ""), said)


def _first_entry(text: str) -> int | None:
    """Where the list of entries begins; None: there is no list."""
    head = text[:_HEAD]
    begin = len(head) - len(head.lstrip())
    if text[begin] == "[":
        return begin + 1
    found = _EVENTS.search(text, begin, begin + _MOST_ENTRY)
    try:
        return found.end() if found and isinstance(json.loads(f'{text[begin : found.start()]}"x":0}}'), dict) else None
    except (ValueError, RecursionError):
        return None  # it stands within something else


def _entries(text: str, at: int) -> Iterator[Any]:
    """One after another, so that never more than one is held; behind one that is damaged, line by line."""
    decoder, base, window, strange = json.JSONDecoder(), 0, "", 0
    while strange < _MOST_STRANGE:
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        if text[at : at + 1] in ("", "]"):
            return
        try:
            entry, end = decoder.raw_decode(window, at - base)
        except (ValueError, RecursionError):
            if at == base and window:
                yield from _line_by_line(text, at)
                return
            base, window = at, text[at : at + _MOST_ENTRY]
            continue
        at, strange = base + end, strange + (not isinstance(entry, dict))
        yield entry


def _line_by_line(text: str, at: int) -> Iterator[Any]:
    """One entry in each line, or what is left of a file that was cut off."""
    for found in _FILLED.finditer(text, at):
        line = found[0].strip()
        if line.startswith("{") and len(line) <= _MOST_ENTRY:
            try:
                yield json.loads(line.rstrip(","))
            except (ValueError, RecursionError):
                continue


def _said(event: dict[str, Any]) -> str | None:
    inner = event.get("jsonPayload")
    told = event.get("message", event.get("textPayload", inner.get("message") if isinstance(inner, dict) else None))
    return told if isinstance(told, str) else None


def _stream(event: dict[str, Any]) -> str:
    resource = event.get("resource")
    named: list[Any] = [event.get("labels"), resource.get("labels") if isinstance(resource, dict) else None]
    for labels in named:
        for name in _LABELS if isinstance(labels, dict) else ():
            if isinstance(labels.get(name), str):
                return _short(labels[name])
    return _short(event.get("logStreamName", event.get("logName", "")))


def _of_table(text: str) -> Iterator[_Entry]:
    if _ROWS.match(text[:600].encode()):
        for line in _FILLED.finditer(text):
            cells = line[0].split("\t", 2)
            if len(cells) == 3 and cells[0].isdecimal() and len(cells[0]) <= _LONGEST_STAMP:
                yield _Entry(_short(cells[1]), int(cells[0]), cells[2])
        return
    if _STREAMED.match(text[:600].encode()):
        for line in _FILLED.finditer(text):
            cells = line[0].split("\t", 3)
            if len(cells) == 4:
                yield _Entry(_short(cells[2]), cells[1].replace(" +0000", "Z"), cells[3].strip())
        return
    yield from _of_rows(csv.reader(line[0] for line in _WHOLE.finditer(text)))


def _of_rows(rows: Iterator[list[str]]) -> Iterator[_Entry]:
    """CloudWatch's own tables: `timestamp,message`, or what a query of Logs Insights was asked for."""
    try:
        titles = [cell.strip().lstrip("@").lower() for cell in next(rows, [])]
        for row in rows:
            cells = dict(zip(titles, row, strict=False))
            if "message" in cells:
                at = cells.get("timestamp", "")
                stream = _short(cells.get("logstream", ""))
                yield _Entry(stream, int(at) if at.isdecimal() and len(at) == 13 else at, cells["message"])
    except csv.Error:  # a cell without end
        return


def _short(name: Any) -> str:
    return _host(name) if isinstance(name, str) and len(name) <= _LONGEST_NAME else "log"


@lru_cache(1024)
def _host(name: str) -> str:
    """Of `job/algo-1-1709640011` the host. Secrets are taken out while they can still be told."""
    last = redact(name).rstrip("/").rsplit("/", 1)[-1]
    return _ODD.sub("_", _STARTED.sub("", last)).strip("._")[:_LONGEST] or "log"


def _stamp(at: str | int | float) -> str:
    """Before a line, as Kubernetes writes it."""
    if isinstance(at, str):
        text = at.strip().replace(" ", "T", 1)
        return f"{text} " if re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:.]{8,20}Z", text) else ""
    try:
        return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z "
    except (OverflowError, ValueError, OSError, TypeError):
        return ""

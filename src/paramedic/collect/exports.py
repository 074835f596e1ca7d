"""Logs as clouds export them (CloudWatch, Google Cloud Logging; JSON or a table) → what each stream said, in order."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from paramedic.redact import redact

MOST = 64 << 20
_MOST_STREAMS = 4_096
_LONGEST = 200
_LONGEST_NAME = 512
"""No cloud has longer names of streams."""
_JSON = re.compile(
    rb'\s{0,200}[\[{](?s:.){0,400}?"(?:logStreamName|ingestionTime|textPayload|insertId|jsonPayload)"\s{0,20}:'
)
_ROWS = re.compile(rb"\d{13}\t[^\t\n]{1,400}\t")
_TITLES = re.compile(rb'"?@?timestamp"?,"?@?(?:message|logStream)"?[,\r\n]', re.I)
_STARTED = re.compile(r"-\d{10,13}$")
"""SageMaker puts behind the name of a host when it was started."""
_ODD = re.compile(r"[^\w.-]+")
_LABELS = ("task_name", "pod_name", "pod", "instance", "instance_id", "container_name", "node_name")


class _Entry(NamedTuple):
    stream: str
    at: str | int | float
    text: str


def is_export(head: bytes) -> bool:
    head = head.removeprefix(b"\xef\xbb\xbf")
    return bool(_JSON.match(head) or _ROWS.match(head) or _TITLES.match(head))


def streams(data: bytes) -> dict[str, bytes]:
    """By their short names; empty: not an export after all."""
    text = data.decode("utf-8-sig", "replace")
    entries = _of_json(text) if text.lstrip()[:1] in ("{", "[") else _of_table(text)
    found: dict[str, list[str]] = {}
    for entry in entries:
        if entry.stream in found or len(found) < _MOST_STREAMS:
            stamp = _stamp(entry.at)
            found.setdefault(entry.stream, []).extend(f"{stamp}{line}\n" for line in entry.text.splitlines())
    return {name: "".join(lines).encode("utf-8", "replace") for name, lines in found.items()}


def _of_json(text: str) -> Iterator[_Entry]:
    try:
        parsed: Any = json.loads(text)
    except (ValueError, RecursionError):
        parsed = list(_line_by_line(text))
    events = parsed.get("events") if isinstance(parsed, dict) else parsed
    for event in events if isinstance(events, list) else ():
        said = _said(event) if isinstance(event, dict) else None
        if said is not None:
            yield _Entry(_stream(event), event.get("timestamp", ""), said)


def _line_by_line(text: str) -> Iterator[Any]:
    """One entry in each line, or what is left of a file that was cut off."""
    for line in text.splitlines():
        if line.lstrip().startswith("{"):
            try:
                yield json.loads(line.rstrip().rstrip(","))
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
        for line in text.splitlines():
            cells = line.split("\t", 2)
            if len(cells) == 3 and cells[0].isdecimal():
                yield _Entry(_short(cells[1]), int(cells[0]), cells[2])
        return
    yield from _of_rows(csv.reader(io.StringIO(text)))


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

"""What NCCL's RAS says as JSON, put into the sentences of its text form: one set of rules reads both."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from paramedic.collect.archives import Input
from paramedic.collect.logs import LogRead
from paramedic.model import Event, Skipped, Source
from paramedic.redact import clipped

_MOST_BYTES = 64 << 20
_MOST_LINES = 10_000


def is_ras(head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and b'"nccl_version"' in head and b'"communicators"' in head


def read_ras(item: Input, source: Source) -> LogRead:
    data = item.stream.read(_MOST_BYTES)
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return LogRead(source, skipped=[Skipped(item.name, "NCCL RAS: cut off or damaged; nothing of it was used")])
    lines = [line for _, line in zip(range(_MOST_LINES), _sentences(said), strict=False)]
    events = [Event(source.id, number, "line", clipped(line, 400), line=number) for number, line in enumerate(lines, 1)]
    return LogRead(replace(source, kind="ras", rank=None, lines=max(len(lines), 1), bytes=len(data)), events)


def _sentences(said: Any) -> Iterator[str]:
    for comm in _dicts(said, "communicators"):
        for gone in _dicts(comm, "missing_ranks"):
            status = gone.get("status")
            dead = isinstance(status, dict) and status.get("considered_dead") is True
            yield f"Rank {_number(gone, 'rank')} is {'considered dead' if dead else 'unresponsive'} -- {_where(gone)}"
        ranks = list(_dicts(comm, "ranks"))
        for op in sorted({op for one in ranks for op in _counts(one)}):
            counts = Counter(_counts(one).get(op, 0) for one in ranks)
            if len(counts) < 2:
                continue
            yield f"Communicator ranks have different {op} operation counts"
            usual, votes = counts.most_common(1)[0]
            yield f"{votes} ranks have launched up to operation {usual}"
            for one in ranks:
                if (count := _counts(one).get(op, 0)) != usual:
                    done = f"has launched up to operation {count}" if count else "has not launched any operations"
                    yield f"Rank {_number(one, 'rank')} {done} -- {_where(one)}"


def _dicts(said: Any, name: str) -> Iterator[Mapping[str, Any]]:
    listed = said.get(name) if isinstance(said, dict) else None
    yield from (one for one in listed if isinstance(one, dict)) if isinstance(listed, list) else ()


def _counts(one: Mapping[str, Any]) -> Mapping[str, int]:
    counts = one.get("collective_counts")
    return {str(op)[:40]: n for op, n in counts.items() if isinstance(n, int)} if isinstance(counts, dict) else {}


def _number(one: Mapping[str, Any], name: str) -> int:
    value = one.get(name)
    return value if isinstance(value, int) else -1


def _where(one: Mapping[str, Any]) -> str:
    return (
        f"GPU {_number(one, 'cuda_dev')} managed by process {_number(one, 'pid')} on node {str(one.get('host'))[:100]}"
    )

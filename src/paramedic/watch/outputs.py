"""For other people's screens: a Prometheus text file, and the verdict to a webhook. Neither can hold up or fail the
job."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from paramedic.errors import ParamedicError
from paramedic.run_folder import whole

if TYPE_CHECKING:
    from paramedic.watch.watcher import Watcher

_TIMEOUT_S = 10


def check_address(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ParamedicError(f"--webhook {url}: not an http or https address")


def after(metrics: str | None, webhook: str | None) -> Callable[[Watcher], None]:
    """What is done after every look at the job."""
    sent: list[threading.Thread] = []

    def look(watcher: Watcher) -> None:
        if metrics:
            write_metrics(metrics, watcher)
        if webhook and watcher.kind in ("hang", "failure") and not sent:
            sent.append(threading.Thread(target=send, args=(webhook, message(watcher)), daemon=True))
            sent[0].start()
            sent[0].join(_TIMEOUT_S)

    return look


def message(watcher: Watcher) -> bytes:
    verdict = watcher.verdict.verdict if watcher.verdict else None
    said = {
        "tool": "paramedic",
        "kind": watcher.kind,
        "host": watcher.host,
        "folder": os.path.abspath(watcher.folder),
        "rule": verdict.rule if verdict else None,
        "symptom": str(verdict.symptom) if verdict else None,
        "ranks": list(verdict.ranks) if verdict else [],
        "text": verdict.summary if verdict else f"the job ended ({watcher.kind}) and nothing tells why",
    }
    return json.dumps(said).encode()


def send(url: str, data: bytes) -> None:
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(request, timeout=_TIMEOUT_S):
        pass


def write_metrics(path: str, watcher: Watcher) -> None:
    with contextlib.suppress(ParamedicError), whole(path) as file:
        file.writelines(f"{line}\n".encode() for line in metric_lines(watcher))


def metric_lines(watcher: Watcher) -> Iterator[str]:
    """In Prometheus' text format; conditions are one series each, of which one is 1."""
    yield "# TYPE paramedic_rank_steps counter"
    yield from (f'paramedic_rank_steps{{rank="{rank}"}} {one.steps}' for rank, one in sorted(watcher.pulses.items()))
    yield "# TYPE paramedic_rank_still_seconds gauge"
    for rank, one in sorted(watcher.pulses.items()):
        yield f'paramedic_rank_still_seconds{{rank="{rank}"}} {max(one.looked - one.moved, 0):.1f}'
    yield "# TYPE paramedic_rank_condition gauge"
    for rank, one in sorted(watcher.pulses.items()):
        yield f'paramedic_rank_condition{{rank="{rank}",condition="{one.condition}"}} 1'
    yield "# TYPE paramedic_rank_host_memory_bytes gauge"
    for rank, one in sorted(watcher.pulses.items()):
        yield f'paramedic_rank_host_memory_bytes{{rank="{rank}"}} {int(one.state.get("host_memory") or 0)}'
    yield "# TYPE paramedic_job_hung gauge"
    yield f"paramedic_job_hung {int(watcher.kind == 'hang')}"

"""the jobs that were submitted: how they stand, what was decided about them, what they cost

A job whose controller is gone gets another one, which goes on where that one stopped.

  paramedic jobs
  paramedic jobs ID          its attempts and all that happened
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from paramedic.commands import flags

if TYPE_CHECKING:
    from paramedic.submit.job import Job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", nargs="?", help="one job, or the beginning of its id")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    from paramedic.submit.job import Job
    from paramedic.submit.store import Store

    store = Store()
    if args.id:
        job = Job(args.id, store=store)
        _print_json(document(job, events=True)) if args.format == "json" else _print_one(job)
        return 0
    jobs = [Job(entry.id, store=store) for entry in store.entries()]
    if args.format == "json":
        _print_json({"schema_version": 1, "jobs": [document(job) for job in jobs]})
    elif jobs:
        _print_table(jobs)
    else:
        flags.say("paramedic: no job was submitted so far")
    return 0


def document(job: Job, events: bool = False) -> dict[str, Any]:
    status = job.status
    found: dict[str, Any] = {
        "id": job.id, "engine": job.spec.engine, "phase": status, "what": job.spec.what, "nodes": job.spec.nodes,
        "ranks": job.spec.world_size, "device": "gpu" if job.spec.gpus_per_rank else "rank",
        "attempts": [
            {
                "number": one.number, "code": one.code, "reason": one.reason, "cause": one.cause, "action": one.action,
                "why": one.why, "tunables": dict(one.tunables), "resume": one.resume, "exclude": list(one.exclude),
                "device_hours": round(one.device_hours, 4), "engine_id": one.engine_id,
                "folder": job.folder(one.number),
            }
            for one in job.attempts
        ],
    }  # fmt: skip
    if events:
        found["schema_version"] = 1
        found["events"] = [
            {"time": one.at, "attempt": one.attempt, "kind": one.kind, "text": one.text, "fields": one.fields}
            for one in job.events()
        ]
    return found


def _print_json(found: Any) -> None:
    from paramedic.report.json import dumps

    print(dumps(found))


def _print_table(jobs: list[Job]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("job", "engine", "phase", "ranks", "attempts", "hours", "last cause", "what"):
        table.add_column(
            name, no_wrap=name == "job", justify="right" if name in ("ranks", "attempts", "hours") else "left"
        )
    for job in jobs:
        attempts = job.attempts
        cause = next((one.cause for one in reversed(attempts) if one.cause), "")
        row = (
            job.id, job.spec.engine, job.status, str(job.spec.world_size), str(len(attempts)),
            f"{sum(one.device_hours for one in attempts):.2f}", cause, _plain(job.spec.what)[:60],
        )  # fmt: skip
        table.add_row(*map(Text, row))
    flags.print_table(table, width=140)


def _print_one(job: Job) -> None:
    from rich.table import Table
    from rich.text import Text

    device = "GPU-hours" if job.spec.gpus_per_rank else "rank-hours"
    size = f"{job.spec.nodes} × {job.spec.ranks_per_node} ranks"
    print(f"{job.id}: {job.status} on {job.spec.engine}, {size}: {_plain(job.spec.what)}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("attempt", "end", "cause", "decision", device):
        table.add_column(name)
    for one in job.attempts:
        end = "" if one.ended is None else one.reason or f"exit code {one.code}"
        table.add_row(*map(Text, (str(one.number), end, one.cause, _plain(one.why), f"{one.device_hours:.3f}")))
    flags.print_table(table, width=140)
    for event in job.events():
        clock = time.strftime("%H:%M:%S", time.localtime(event.at))
        number = f"[{event.attempt}] " if event.attempt else ""
        print(f"{clock} {number}{event.kind}: {_plain(event.text)}{_more(event.fields)}")


def _more(fields: dict[str, Any]) -> str:
    said = fields.get("why") or fields.get("said") or ""
    return f" ({_plain(str(said))})" if said else ""


def _plain(text: str) -> str:
    from paramedic.report.escape import printable

    return printable(" ".join(text.split()))

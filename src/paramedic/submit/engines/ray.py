"""Ray, by its jobs: a driver on the cluster reserves a placement group, one bundle a node, and starts a node in each.

Options: address (http://head:8265; else RAY_API_SERVER_ADDRESS). The jobs' folder is on a disk that the nodes share.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal as signals
import time
from importlib import import_module
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.submit import ending
from paramedic.submit.code import ours
from paramedic.submit.engines import Concern, State, code_of, exits, reason_of, write_launch
from paramedic.submit.on_ray import LOST, UNPLACED
from paramedic.submit.spec import ENGINE, MARK, Plan

CAN_EXCLUDE = True
_END_PATIENCE = 60.0
_LOST = re.compile(rf"^{re.escape(LOST)}(\S+)", re.M)


def render(plan: Plan) -> dict[str, Any]:
    """What Ray's job API is given. The id is ours, so that it is found again."""
    spec = plan.spec
    return {
        "submission_id": plan.engine_name,
        "entrypoint": shlex.join(ours("on_ray", plan.folder)),
        "runtime_env": {"env_vars": {**spec.environment, MARK: plan.mark}},
        "metadata": {"paramedic_job": plan.job, "paramedic_attempt": str(plan.number)},
    }


def placement(plan: Plan) -> dict[str, Any]:
    """Read by the driver, from the attempt's folder."""
    spec = plan.spec
    bundle: dict[str, float] = {"CPU": spec.ranks_per_node * spec.cpus_per_rank}
    if spec.gpus_per_rank:
        bundle["GPU"] = spec.ranks_per_node * spec.gpus_per_rank
    return {
        "bundles": [bundle] * spec.nodes,
        "strategy": "STRICT_SPREAD" if spec.nodes > 1 else "PACK",
        "exclude": list(plan.exclude),
        "patience_s": float(spec.options.get("patience", 600)),
    }


def _client(plan: Plan) -> Any:
    return client(plan.spec.options.get("address", ""))


def client(address: str) -> Any:
    try:
        jobs = import_module("ray.job_submission")
    except ImportError as error:
        raise ParamedicError(f"Ray is not installed here: pip install 'paramedic[ray]' ({error})") from None
    address = address or os.environ.get("RAY_API_SERVER_ADDRESS") or "http://127.0.0.1:8265"
    try:
        return jobs.JobSubmissionClient(address)
    except Exception as error:  # whatever the client meets on its way: ConnectionError, RuntimeError, HTTP errors
        raise ParamedicError(f"Ray at {address}: not reached: {_first_line(error)}") from None


def _asked(work: Any, *arguments: Any) -> Any:
    try:
        return work(*arguments)
    except Exception as error:
        raise ParamedicError(f"Ray: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().split("\n") or [""])[0][:300] or type(error).__name__


def check(plan: Plan) -> list[Concern]:
    try:
        _client(plan)
    except ParamedicError as error:
        return [Concern(True, str(error))]
    return []


def submit(plan: Plan) -> str:
    write_launch(plan)
    with open(os.path.join(plan.folder, "placement.json"), "w", encoding="utf-8") as file:
        json.dump(placement(plan), file)
    reached = _client(plan)
    try:
        return str(reached.submit_job(**render(plan)))
    except Exception as error:
        raise ParamedicError(f"Ray: {_first_line(error)}") from None


def find(plan: Plan) -> str | None:
    known = {job.submission_id for job in _asked(_client(plan).list_jobs)}
    return plan.engine_name if plan.engine_name in known else None


def poll(id: str, plan: Plan) -> State:
    reached = _client(plan)
    info = _asked(reached.get_job_info, id)
    word = str(getattr(info.status, "value", info.status))
    if word == "PENDING":
        return State("queued")
    if word == "RUNNING":
        started = os.path.exists(os.path.join(plan.folder, "placed"))
        return State("started" if started else "queued")
    said = str(info.message or "")
    text = _asked(reached.get_job_logs, id)
    lost = tuple(_LOST.findall(text))
    reason = (
        "node-lost" if lost else "not-granted" if UNPLACED in text else "cancelled-outside" if word == "STOPPED" else ""
    )
    ends = exits(plan)
    code = 0 if word == "SUCCEEDED" else code_of(ends) or getattr(info, "driver_exit_code", None) or 1
    reason = reason or reason_of(ends)
    if not reason and not ends and word == "FAILED":
        reason = "agent-lost"  # the driver itself is gone, with its node for instance
    return State("ended", code, reason, lost, said[:1000])


def logs(id: str, plan: Plan) -> None:
    with open(os.path.join(plan.folder, ENGINE, "ray-driver.log"), "w", encoding="utf-8") as file:
        file.write(_asked(_client(plan).get_job_logs, id))


def signal(id: str, plan: Plan, number: int) -> None:
    if number == signals.SIGTERM:
        _asked(_client(plan).stop_job, id)


def cancel(id: str, plan: Plan) -> None:
    """The driver is stopped; its actors end with it, their nodes end with them, and on this machine nothing is left."""
    reached = _client(plan)
    until = time.monotonic() + _END_PATIENCE
    while str(getattr(_asked(reached.get_job_status, id), "value", "")) in ("PENDING", "RUNNING"):
        _asked(reached.stop_job, id)
        if time.monotonic() > until:
            raise ParamedicError(f"Ray job {id}: still there after stop_job")
        time.sleep(0.5)
    ending.end(lambda: ending.marked(plan.mark), 8.0)


def fetch(id: str, folder: str) -> list[str]:
    reached = client("")
    known = {name: job for job in _asked(reached.list_jobs) for name in (job.submission_id, job.job_id) if name}
    if id not in known:
        raise ParamedicError(f"ray:{id}: Ray knows no such job")
    found = known[id]
    with open(os.path.join(folder, "ray-driver.log"), "w", encoding="utf-8") as file:
        file.write(_asked(reached.get_job_logs, found.submission_id))
        file.write(f"\njob {id}: {found.status}: {found.message or ''}\n")
    return []

"""This machine: torchrun in a session of its own. It outlives whoever submitted it, and whoever follows it."""

from __future__ import annotations

import contextlib
import os
import signal as signals
import subprocess
import sys

from paramedic.errors import ParamedicError
from paramedic.submit import ending
from paramedic.submit.code import ours
from paramedic.submit.engines import Concern, State, code_of, exits, reason_of, write_launch
from paramedic.submit.spec import ENGINE, MARK, Plan
from paramedic.watch.process import look

CAN_EXCLUDE = False
_PATIENCE = 6.0


def render(plan: Plan) -> list[str]:
    """The command of the attempt's only node."""
    return ours("node", plan.folder)


def check(plan: Plan) -> list[Concern]:
    found: list[Concern] = []
    here = len([name for name in os.listdir("/dev") if name.removeprefix("nvidia").isdigit() and name != "nvidia"])
    wanted = plan.spec.ranks_per_node * plan.spec.gpus_per_rank
    if wanted > here:
        found.append(Concern(True, f"{wanted} GPUs are asked for, and this machine has {here}"))
    cores = len(os.sched_getaffinity(0))
    if plan.spec.ranks_per_node > 4 * cores:
        found.append(Concern(False, f"{plan.spec.ranks_per_node} ranks share {cores} processor cores"))
    return found


def submit(plan: Plan) -> str:
    write_launch(plan)
    environment = {**os.environ, **plan.spec.environment, MARK: plan.mark}
    with open(os.path.join(plan.folder, ENGINE, "node-0.log"), "ab") as log:
        try:
            process = subprocess.Popen(
                render(plan), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        except OSError as error:
            raise ParamedicError(f"{sys.executable}: cannot be started: {error.strerror or error}") from None
    one = look(process.pid)
    process.returncode = 0  # it is reaped by `ending`, and by init once we are gone
    return f"{process.pid}:{one.started if one else 0}"


def find(plan: Plan) -> str | None:
    """The first of its processes, if any is left; or that it has ended already."""
    alive = sorted((one.started, pid) for pid in ending.marked(plan.mark) if (one := look(pid)))
    if alive:
        return f"{alive[0][1]}:{alive[0][0]}"
    return "0:0" if exits(plan) else None


def poll(id: str, plan: Plan) -> State:
    ends = exits(plan)
    if ends:
        return State("ended", code_of(ends), reason_of(ends))
    if not ending.is_alive(*_process(id)):
        ends = exits(plan)  # it may have written it just before it ended
        if ends:
            return State("ended", code_of(ends), reason_of(ends))
        return State("ended", None, "agent-lost", (), "the process that ran the attempt is gone")
    return State("started")


def logs(id: str, plan: Plan) -> None:
    return


def signal(id: str, plan: Plan, number: int) -> None:
    pid, started = _process(id)
    if pid and ending.is_alive(pid, started):
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def cancel(id: str, plan: Plan) -> None:
    """SIGTERM to the node, which ends its ranks; then SIGKILL to all that carry the attempt's mark."""
    signal(id, plan, signals.SIGTERM)
    if not ending.end(lambda: ending.marked(plan.mark), _PATIENCE if ending.is_alive(*_process(id)) else 0.0):
        left = sorted(ending.marked(plan.mark))
        raise ParamedicError(f"{plan.mark}: the kernel does not let go of processes {', '.join(map(str, left))}")


def _process(id: str) -> tuple[int, float]:
    pid, _, started = id.partition(":")
    return int(pid), float(started or 0)

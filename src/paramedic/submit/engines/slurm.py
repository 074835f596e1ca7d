"""Slurm, by its own commands: sbatch, squeue, scontrol, scancel, and sacct where there is accounting.

Options: partition, account, qos, constraint, reservation, memory (per node), and `sbatch` for further words.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal as signals
import time

from paramedic.errors import ParamedicError
from paramedic.submit import ending
from paramedic.submit.code import ours
from paramedic.submit.engines import Concern, State, code_of, exits, reason_of, write_launch
from paramedic.submit.shell import ask
from paramedic.submit.spec import ENGINE, MARK, Plan

CAN_EXCLUDE = True
_NEEDED = "is Slurm installed on this machine?"
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "SUSPENDED")
_RUNNING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED")
_REASONS = {
    "PREEMPTED": "preempted",
    "TIMEOUT": "time-limit",
    "DEADLINE": "time-limit",
    "NODE_FAIL": "node-lost",
    "BOOT_FAIL": "node-lost",
    "OUT_OF_MEMORY": "out-of-memory",
    "CANCELLED": "cancelled-outside",
    "REVOKED": "cancelled-outside",
}
_OPTIONS = ("partition", "account", "qos", "constraint", "reservation")
_END_PATIENCE = 60.0


def render(plan: Plan) -> str:
    """The batch script. Slurm itself does not queue it again: what to do after a failure is decided by its cause."""
    spec, options = plan.spec, plan.spec.options
    wanted = {
        "job-name": plan.engine_name,
        "nodes": str(spec.nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": str(spec.ranks_per_node * spec.cpus_per_rank),
        "output": os.path.join(plan.folder, ENGINE, "slurm-%j.out"),
        "comment": f"paramedic:{plan.mark}",
        **{name: options[name] for name in _OPTIONS if name in options},
    }
    if spec.gpus_per_rank:
        wanted["gpus-per-node"] = str(spec.ranks_per_node * spec.gpus_per_rank)
    if spec.time_limit_s:
        wanted["time"] = str(-(-spec.time_limit_s // 60))
    if "memory" in options:
        wanted["mem"] = options["memory"]
    if plan.exclude:
        wanted["exclude"] = ",".join(plan.exclude)
    head = [f"#SBATCH --{name}={_quoted(value)}" for name, value in wanted.items()]
    head += ["#SBATCH --no-requeue", *(f"#SBATCH {word}" for word in shlex.split(options.get("sbatch", "")))]
    node = shlex.join(ours("node", plan.folder))
    return "\n".join(
        [
            "#!/bin/bash",
            *head,
            f"export {MARK}={shlex.quote(plan.mark)}",
            *(f"export {name}={shlex.quote(value)}" for name, value in sorted(spec.environment.items())),
            'export PARAMEDIC_HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            "export PARAMEDIC_PORT=$((20000 + SLURM_JOB_ID % 10000))",
            "exec srun --kill-on-bad-exit=1 --export=ALL bash -c "
            + shlex.quote(f"PARAMEDIC_NODE=$SLURM_NODEID exec {node}"),
            "",
        ]
    )


def _quoted(value: str) -> str:
    if any(sign in value for sign in '"\n\r'):
        raise ParamedicError(f"{value!r}: cannot be written into a batch script")
    return f'"{value}"' if any(sign.isspace() for sign in value) else value


def check(plan: Plan) -> list[Concern]:
    """`sbatch --test-only` says whether it could ever be started."""
    try:
        ask(["sbatch", "--test-only", "--parsable"], _NEEDED, render(plan))
    except ParamedicError as error:
        return [Concern(True, str(error))]
    return []


def submit(plan: Plan) -> str:
    write_launch(plan)
    script = os.path.join(plan.folder, "job.sbatch")
    with open(script, "w", encoding="utf-8") as file:
        file.write(render(plan))
    said = ask(["sbatch", "--parsable", script], _NEEDED)
    return said.strip().split(";")[0]


def find(plan: Plan) -> str | None:
    said = ask(["squeue", "--noheader", "--states=all", f"--name={plan.engine_name}", "--format=%A"], _NEEDED)
    ids = said.split()
    return ids[-1] if ids else None


def poll(id: str, plan: Plan) -> State:
    told = show(id)
    if not told:
        told = _accounted(id)
    word = told.get("JobState", "").split()[0].rstrip("+") if told.get("JobState") else ""
    ends = exits(plan)
    if word in _WAITING:
        return State("queued", text=told.get("Reason", ""))
    if word in _RUNNING:
        return State("started", hosts=tuple(_hosts(told.get("NodeList", ""))))
    if not word and not ends:
        return State("ended", None, "agent-lost", (), "Slurm does not know the job any more")
    code = 0 if word == "COMPLETED" else code_of(ends) or _exit_code(told) or 1
    reason = _REASONS.get(word, "") or reason_of(ends)
    hosts = _failed_hosts(told) if reason == "node-lost" else []
    return State("ended", code, reason, tuple(hosts), f"JobState={word} Reason={told.get('Reason', '')}")


def show(id: str) -> dict[str, str]:
    """`scontrol show job` as a table; empty when the controller has forgotten the job."""
    said = ask(["scontrol", "--oneliner", "show", "job", id], _NEEDED, may_fail=True)
    return dict(re.findall(r"(?:^|\s)([A-Za-z/:]+)=((?:[^\s=]+(?=\s|$))?)", said))


def _accounted(id: str) -> dict[str, str]:
    """Where there is accounting, it knows jobs that the controller has forgotten."""
    try:
        said = ask(["sacct", "--noheader", "--parsable2", "-X", "-j", id, "--format=State,ExitCode,NodeList"], _NEEDED)
    except ParamedicError:
        return {}
    fields = said.strip().split("\n")[0].split("|")
    return dict(zip(("JobState", "ExitCode", "NodeList"), fields, strict=False)) if fields[0] else {}


def _exit_code(told: dict[str, str]) -> int | None:
    hit = re.fullmatch(r"(\d+):(\d+)", told.get("ExitCode", ""))
    return (int(hit[1]) or (128 + int(hit[2]) if int(hit[2]) else 0)) if hit else None


def _hosts(nodes: str) -> list[str]:
    if not nodes or nodes == "(null)":
        return []
    return ask(["scontrol", "show", "hostnames", nodes], _NEEDED, may_fail=True).split()


def _failed_hosts(told: dict[str, str]) -> list[str]:
    """Those that are down; where all are up again, those that it had."""
    hosts = _hosts(told.get("NodeList", ""))
    failed = told.get("FailedNode", "")
    if failed and failed != "(null)":
        return _hosts(failed)
    if not hosts:
        return []
    said = ask(["sinfo", "--noheader", "--Node", "--nodes", ",".join(hosts), "--format=%n %t"], _NEEDED, may_fail=True)
    down = {line.split()[0] for line in said.splitlines() if re.search(r" (down|drain|fail|drng|maint|boot)", line)}
    return [host for host in hosts if host in down] or hosts


def logs(id: str, plan: Plan) -> None:
    """What the controller knows of the job, for the diagnosis; its output is in the folder already."""
    said = ask(["scontrol", "show", "job", id], _NEEDED, may_fail=True)
    if said:
        with open(os.path.join(plan.folder, ENGINE, "scontrol.txt"), "w", encoding="utf-8") as file:
            file.write(said)


def signal(id: str, plan: Plan, number: int) -> None:
    ask(["scancel", f"--signal={number}", id], _NEEDED, may_fail=True)


def cancel(id: str, plan: Plan) -> None:
    ask(["scancel", id], _NEEDED, may_fail=True)
    until = time.monotonic() + _END_PATIENCE
    killed = False
    while show(id).get("JobState", "").split(" ")[0] in (*_WAITING, *_RUNNING):
        if time.monotonic() > until:
            if killed:
                raise ParamedicError(f"Slurm job {id}: still there after scancel --signal=KILL")
            ask(["scancel", f"--signal={int(signals.SIGKILL)}", "--full", id], _NEEDED, may_fail=True)
            killed, until = True, time.monotonic() + _END_PATIENCE
        time.sleep(0.5)
    with contextlib.suppress(OSError):  # on this machine, where it is a node itself
        ending.end(lambda: ending.marked(plan.mark), 0.0)


def fetch(id: str, folder: str) -> list[str]:
    """All that Slurm has about a job, also one that was not submitted by us; its output is read where it lies."""
    if not id.isascii() or not id.replace("_", "").isdigit():
        raise ParamedicError(f"slurm:{id}: a job's number is wanted")
    said = ask(["scontrol", "show", "job", id], _NEEDED, may_fail=True)
    told = show(id)
    accounting = ""
    with contextlib.suppress(ParamedicError):
        accounting = ask(["sacct", "-j", id, "--format=JobID,State,ExitCode,Reason,NodeList,Elapsed,MaxRSS"], _NEEDED)
    if not said and id not in accounting:
        raise ParamedicError(f"slurm:{id}: Slurm knows no such job")
    for name, text in (("scontrol.txt", said), ("sacct.txt", accounting)):
        if text.strip():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
    return [path for path in dict.fromkeys((told.get("StdOut", ""), told.get("StdErr", ""))) if os.path.isfile(path)]

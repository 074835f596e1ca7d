"""The fault matrix of `paramedic submit`: real jobs on real engines, each with one planted fault.

    python bench/submit_faults.py [--engine local] [--repeat 2] [--only NAME] [--jobs 3] [--output docs/submit-faults.md]

Each run is judged by what it came to: the final phase, the decisions, the steps that were done twice, checkpoints that
disappeared, and processes that are left.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))
from paramedic.submit import ending  # noqa: E402
from paramedic.submit.job import Job  # noqa: E402
from paramedic.submit.store import ENDED, Store  # noqa: E402

PROGRAM = ROOT / "tests" / "submitted" / "train.py"
STEPS = 16
PATIENCE = 600.0


@dataclass(frozen=True)
class Fault:
    name: str
    expected: str
    """The final phase."""
    attempts: int
    cfg: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    meddle: Callable[[Trial], None] | None = None
    """What is done from outside, once the job has come to its fault."""
    engines: tuple[str, ...] = ("local", "ray", "slurm")


@dataclass
class Trial:
    fault: Fault
    engine: str
    folder: Path
    options: dict[str, str]
    job: Job | None = None

    @property
    def store(self) -> Store:
        return Store(str(self.folder / "root"))

    def until(self, true: Callable[[], object], seconds: float = PATIENCE) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "it did not come to that"
            time.sleep(0.1)

    def at_fault(self) -> bool:
        return (self.folder / "once").exists()

    def go(self) -> None:
        (self.folder / "once.go").touch()


@dataclass
class Outcome:
    fault: Fault
    engine: str
    phase: str
    attempts: int
    causes: list[str]
    again: int
    """Steps that were done twice."""
    checkpoints_lost: int
    left: int
    """Processes that are left."""
    seconds: float
    loss: float | None = None
    why: str = ""

    @property
    def right(self) -> bool:
        return (
            self.phase == self.fault.expected
            and self.attempts == self.fault.attempts
            and not self.checkpoints_lost
            and not self.left
        )


# -- what is done from outside -----------------------------------------------------------------------------------------


def _controllers(trial: Trial) -> list[int]:
    assert trial.job is not None
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
            if trial.job.id.encode() in words and any(b"controller import main" in word for word in words):
                found.append(int(name))
    return found


def kill_controller(trial: Trial) -> None:
    trial.until(trial.at_fault)
    for pid in _controllers(trial):
        os.kill(pid, signal.SIGKILL)
    trial.until(lambda: not _controllers(trial))
    trial.go()  # the job goes on to its end while nobody follows it


def kill_controller_twice(trial: Trial) -> None:
    kill_controller(trial)
    assert trial.job is not None
    trial.job.status  # noqa: B018 - asking starts another one
    trial.until(lambda: _controllers(trial) or (trial.job and trial.job.standing.phase in ENDED))
    for pid in _controllers(trial):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def lock_store(trial: Trial) -> None:
    """Longer than a writer's patience."""
    trial.until(trial.at_fault)
    with contextlib.closing(sqlite3.connect(trial.folder / "root" / "jobs.sqlite", isolation_level=None)) as held:
        held.execute("BEGIN EXCLUSIVE")
        trial.go()
        time.sleep(8)
        held.execute("ROLLBACK")


def spoil_checkpoint(trial: Trial) -> None:
    """The newest one is cut off, as by a crash of the file system; the rank then fails."""
    trial.until(trial.at_fault)
    newest = max((trial.folder / "checkpoints").glob("*.pt"), key=lambda path: int(path.stem.split("-")[1]))
    newest.write_bytes(newest.read_bytes()[:-200])
    for pid in ending.marked(f"{trial.job.id}/1" if trial.job else ""):
        words = Path("/proc", str(pid), "cmdline").read_bytes()
        if b"submit.call" in words and b"torch.distributed.run" not in words:
            os.kill(pid, signal.SIGKILL)
            return


def cancel(trial: Trial) -> None:
    trial.until(trial.at_fault)
    assert trial.job is not None
    trial.job.cancel()


def _slurm_id(trial: Trial) -> str:
    trial.until(trial.at_fault)
    assert trial.job is not None
    return trial.job.attempts[0].engine_id


def node_down(trial: Trial) -> None:
    """The controller of Slurm gives the node up; it is up again once the job has ended elsewhere."""
    from paramedic.submit.engines import slurm

    node = slurm.show(_slurm_id(trial))["NodeList"]
    subprocess.run(["scontrol", "update", f"nodename={node}", "state=down", "reason=planted"], check=True)
    trial.go()
    assert trial.job is not None
    trial.job.wait(PATIENCE)
    subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"], check=False)


def preempt(trial: Trial) -> None:
    """A job of the urgent partition wants the node."""
    from paramedic.submit.engines import slurm

    node = slurm.show(_slurm_id(trial))["NodeList"]
    words = [
        "sbatch",
        "--partition=urgent",
        f"--nodelist={node}",
        "--exclusive",
        "--output=/dev/null",
        "--wrap=sleep 3",
    ]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def remove_node(trial: Trial) -> None:
    """The node on which the attempt runs is taken out of the cluster (by the process that holds it)."""
    trial.until(trial.at_fault)
    assert trial.job is not None
    placed = json.loads(Path(trial.job.folder(1), "placed").read_text())
    Path(os.environ["RAY_CLUSTER_FOLDER"], f"remove-{placed[-1]}").touch()


FAULTS = [
    Fault("no fault", "done", 1),
    Fault("rank exception", "failed", 1, {"fault": "exception", "always": True}),
    Fault("SIGKILL of a rank", "done", 2, {"fault": "kill"}),
    Fault("SIGKILL of torchrun", "done", 2, {"fault": "kill-agent"}),
    Fault("SIGKILL of the node's process", "done", 2, {"fault": "kill-node"}, engines=("local",)),
    Fault("time limit, with progress", "done", 2, {"steps": 100, "slow_s": 4}, {"time_limit_s": 120}),
    Fault("hang", "failed", 1, {"fault": "hang", "always": True}, engines=("local",)),
    Fault(
        "out of device memory", "done", 3, {"memory": 2, "micro_batch": 8, "accumulation": 4},
        {"tunable": {"micro_batch": (1, 64), "accumulation": (1, 64)}},
    ),
    Fault(
        "out of device memory, no room", "failed", 1, {"memory": 2, "micro_batch": 8, "accumulation": 4},
        engines=("local",),
    ),
    Fault("corrupt checkpoint", "done", 2, {"fault": "wait", "at": 13}, meddle=spoil_checkpoint),
    Fault("controller killed", "done", 1, {"fault": "wait"}, meddle=kill_controller),
    Fault("controller killed twice", "done", 1, {"fault": "wait"}, meddle=kill_controller_twice, engines=("local",)),
    Fault("store locked", "done", 1, {"fault": "wait"}, meddle=lock_store),
    Fault("node down", "done", 2, {"fault": "wait"}, meddle=node_down, engines=("slurm",)),
    Fault("pre-empted", "done", 2, {"fault": "wait"}, meddle=preempt, engines=("slurm",)),
    Fault("node removed", "done", 2, {"fault": "wait"}, meddle=remove_node, engines=("ray",)),
    Fault("cancelled", "cancelled", 1, {"fault": "wait"}, meddle=cancel),
]  # fmt: skip


# -- one run ---------------------------------------------------------------------------------------------------------------


def submit(trial: Trial, nodes: int) -> None:
    """By a process of its own, which is killed as soon as the job is there: no handle is needed for it to go on."""
    cfg = {
        "steps": STEPS, "at": 6, "rank": 1, "log": str(trial.folder / "log"), "once": str(trial.folder / "once"),
        **trial.fault.cfg,
    }  # fmt: skip
    settings = {"world_size": 2, "checkpoint": str(trial.folder / "checkpoints"), **trial.fault.settings}
    code = (
        "import json, os, signal, sys, paramedic\n"
        "sys.path.insert(0, sys.argv[1]); import train\n"
        "cfg, settings, more = map(json.loads, sys.argv[2:5])\n"
        "job = paramedic.job(**settings)(train.train.__wrapped__).submit(cfg, **more)\n"
        "print(job.id, flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    more = {"engine": trial.engine, "nodes": nodes, "options": trial.options, "root": str(trial.folder / "root")}
    words = [sys.executable, "-c", code, str(PROGRAM.parent), *map(json.dumps, (cfg, settings, more))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False, timeout=PATIENCE)
    assert done.stdout.strip(), done.stderr
    trial.job = Job(done.stdout.strip(), root=str(trial.folder / "root"))


def run(fault: Fault, engine: str, options: dict[str, str], nodes: int, keep: Path) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix=f"{engine}-{fault.name.replace(' ', '-')}-", dir=keep))
    trial, began = Trial(fault, engine, folder, options), time.monotonic()
    submit(trial, nodes)
    job = trial.job
    assert job is not None
    seen: set[str] = set()
    stop = threading.Event()

    def watch_checkpoints() -> None:
        while not stop.wait(0.2):
            seen.update(path.name for path in (folder / "checkpoints").glob("*.pt"))

    watcher = threading.Thread(target=watch_checkpoints)
    watcher.start()
    try:
        if fault.meddle:
            fault.meddle(trial)
        job.wait(PATIENCE)
    except Exception as error:
        print(f"{engine}: {fault.name}: {error}", file=sys.stderr)
        job.cancel()
    finally:
        stop.set()
        watcher.join()
    outcome = judged(trial, seen, time.monotonic() - began)
    if outcome.right:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def judged(trial: Trial, seen: set[str], seconds: float) -> Outcome:
    job, fault = trial.job, trial.fault
    assert job is not None
    with contextlib.suppress(AssertionError):
        trial.until(lambda: not _controllers(trial), 20)
    attempts = job.attempts
    said = (
        [json.loads(line) for line in (trial.folder / "log").read_text().splitlines()]
        if (trial.folder / "log").exists()
        else []
    )
    steps = [one["step"] for one in said if "step" in one]
    there = {path.name for path in (trial.folder / "checkpoints").glob("*.pt")}
    left = [pid for number in range(1, len(attempts) + 1) for pid in ending.marked(f"{job.id}/{number}")]
    loss = job.result() if job.standing.phase == "done" else None
    why = next((e.fields.get("why", "") for e in reversed(list(job.events())) if e.text == "failed"), "")
    return Outcome(
        fault, trial.engine, job.standing.phase, len(attempts), [one.cause for one in attempts if one.cause],
        len(steps) - len(set(steps)), len(seen - there), len(left) + len(_controllers(trial)), seconds, loss, why,
    )  # fmt: skip


# -- the table ---------------------------------------------------------------------------------------------------------------


def recorded(line: str) -> Outcome:
    said = json.loads(line)
    return Outcome(**said | {"fault": Fault(**said["fault"])})


def row(found: list[Outcome]) -> str:
    first = found[0]
    right = sum(one.right for one in found)
    causes = ", ".join(dict.fromkeys(cause for one in found for cause in one.causes)) or "–"
    again = (
        f"{min(one.again for one in found)}–{max(one.again for one in found)}" if len(found) > 1 else str(first.again)
    )
    phases = ", ".join(dict.fromkeys(one.phase for one in found))
    attempts = ", ".join(dict.fromkeys(str(one.attempts) for one in found))
    losses = ", ".join(dict.fromkeys("–" if one.loss is None else f"{one.loss:.5f}" for one in found))
    return (
        f"| {first.engine} | {first.fault.name} | {phases} | {attempts} | {causes} | {losses} | {again} | "
        f"{sum(one.checkpoints_lost for one in found)} | {sum(one.left for one in found)} | {right} of {len(found)} |"
    )


def table(outcomes: list[Outcome]) -> str:
    head = "| engine | fault | final phase | attempts | causes | final loss | steps done twice | lost checkpoints | left processes | as the policy says |\n"
    head += "|---|---|---|---|---|---|---|---|---|---|\n"
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for one in outcomes:
        groups.setdefault((one.engine, one.fault.name), []).append(one)
    return head + "\n".join(row(found) for found in groups.values()) + "\n"


HEAD = """# Faults of submitted jobs, measured

Real jobs of two ranks (gloo, CPU) on one machine of two cores that was busy with other work, each with one planted fault,
submitted by a process that was killed at once; Slurm is slurmctld 22.05 with two slurmd, Ray a `ray.cluster_utils.Cluster` of
three nodes. {right} of {runs} runs went as the policy says: final phase, number of attempts, no checkpoint that disappeared, no
process left. What was done ended with the same loss on each engine, to the last digit kept; a smaller micro-batch or more steps are
another job. Made by `python bench/submit_faults.py --engine local|slurm|ray --record runs.jsonl --output docs/submit-faults.md`;
see [Submitting](submit.md).

"""
SLURM = """
[ -n "$IN_CLUSTER" ] || hostname node-01
. ./slurm.sh
"$@"
code=$?
kill $(jobs -p) 2>/dev/null
pkill -F .cluster/munged.pid
exit $code
"""


def in_slurm() -> None:
    """Starts itself again in a namespace with Slurm's own daemons, two nodes of them."""
    if os.environ.get("SLURM_CONF"):
        return
    place = Path(tempfile.mkdtemp(prefix="slurm-"))
    shutil.copy(ROOT / "src/paramedic/ward/programs/slurm.sh", place)
    (place / "launch.sh").write_text(SLURM)
    words = [
        "unshare",
        "--mount",
        "--uts",
        "--propagation",
        "private",
        "bash",
        "launch.sh",
        sys.executable,
        str(Path(__file__).resolve()),
    ]
    os.chdir(place)
    os.execvp(words[0], [*words, *sys.argv[1:]])


def in_ray() -> None:
    """Starts itself again with a Python that has Ray, and a cluster of three nodes beside it."""
    try:
        import_module("ray")
    except ImportError:
        from paramedic.ward import environments

        python = str(environments.build("submit", lambda text: print(text, file=sys.stderr)) / "bin/python")
        os.environ["PYTHONPATH"] = str(ROOT / "src")
        os.execv(python, [python, *sys.argv])
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.environ["RAY_DASHBOARD_PORT"] = str(server.getsockname()[1])
    with open(folder / "log", "wb") as log:
        holder = subprocess.Popen(
            [sys.executable, str(ROOT / "bench/ray_cluster.py"), str(folder), "3"], stdout=log, stderr=log
        )
    end = time.monotonic() + PATIENCE
    while not (folder / "address").exists():
        assert holder.poll() is None and time.monotonic() < end, (folder / "log").read_text()[-2000:]
        time.sleep(0.2)
    os.environ["RAY_API_SERVER_ADDRESS"] = json.loads((folder / "address").read_text())["address"]
    os.environ["RAY_CLUSTER_FOLDER"] = str(folder)
    atexit.register(holder.wait, 60)
    atexit.register((folder / "stop").touch)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="local", choices=("local", "ray", "slurm"))
    parser.add_argument("--option", action="append", default=[])
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--show", action="store_true", help="run nothing; only show what is recorded")
    parser.add_argument("--record", default="", help="append what came of each run there; --output shows all of it")
    parser.add_argument("--output", default="")
    parser.add_argument("--keep", default=tempfile.gettempdir())
    args = parser.parse_args()
    if args.engine == "slurm" and not args.show:
        in_slurm()
    if args.engine == "ray" and not args.show and not os.environ.get("RAY_CLUSTER_FOLDER"):
        in_ray()
    options = dict(text.split("=", 1) for text in args.option)
    keep = Path(tempfile.mkdtemp(prefix="submit-faults-", dir=args.keep))
    chosen = (
        [] if args.show else [fault for fault in FAULTS if args.engine in fault.engines and args.only in fault.name]
    )
    work = [fault for fault in chosen for _ in range(args.repeat)]

    def one(fault: Fault) -> Outcome:
        outcome = run(fault, args.engine, options, args.nodes, keep)
        print(f"{'ok ' if outcome.right else 'BAD'} {outcome.engine} {fault.name}: {outcome.phase}, {outcome.attempts} attempts, "
              f"{outcome.causes}, {outcome.again} twice, {outcome.left} left, loss {outcome.loss}, {outcome.seconds:.0f} s {outcome.why}",
              file=sys.stderr, flush=True)  # fmt: skip
        return outcome

    with ThreadPoolExecutor(args.jobs) as pool:
        outcomes = list(pool.map(one, work))
    if args.record:
        with open(args.record, "a") as file:
            file.writelines(
                json.dumps({**asdict(replace(one, fault=replace(one.fault, meddle=None)))}) + "\n" for one in outcomes
            )
        outcomes = [recorded(line) for line in Path(args.record).read_text().splitlines()]
    text = table(outcomes)
    print(text)
    if args.output:
        Path(args.output).write_text(HEAD.format(runs=len(outcomes), right=sum(one.right for one in outcomes)) + text)
    return int(not all(outcome.right for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())

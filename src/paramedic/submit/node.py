"""One node of an attempt, the same on every engine: torchrun starts the ranks, the watcher watches them, and when it is
over nothing of it is left.

    python -m paramedic.submit.node FOLDER

PARAMEDIC_NODE, PARAMEDIC_HEAD and PARAMEDIC_PORT say which node this is and where the nodes meet.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paramedic.run_folder import whole
from paramedic.submit import ending, rank_logs
from paramedic.submit.code import PACKAGES
from paramedic.submit.spec import LOGS, WATCH
from paramedic.watch.watcher import CannotStartError, Watcher

if TYPE_CHECKING:
    from paramedic.report import ShownReport

LAUNCH, INLINE = "launch.json", "PARAMEDIC_LAUNCH_JSON"
_LEFT_PATIENCE = 2.0
_SURE = 0.88
"""Ending a job that only crawls costs more than waiting for one that hangs."""


def main(folder: str) -> int:
    ending.adopt_orphans()
    if os.environ.get("PARAMEDIC_WITH_PARENT"):
        ending.end_with_parent()
    shared = os.path.isdir(folder)
    place = folder if shared else tempfile.mkdtemp(prefix="paramedic-")
    said = _launch(place)
    node = int(os.environ.get("PARAMEDIC_NODE") or 0)
    _prepare(place, said)
    started = time.time()
    code, hang = _run(place, said, node, shared)
    ending.end(ending.descendants, _LEFT_PATIENCE)
    rank_logs.settle(place, said["ranks_per_node"])
    end = {"code": code, "hang": hang, "host": socket.gethostname(), "started": started, "ended": time.time()}
    with whole(os.path.join(place, f"exit-{node}.json")) as file:
        file.write(json.dumps(end).encode())
    return code


def _launch(folder: str) -> dict[str, Any]:
    """From the folder, or, where nodes share none, from the environment."""
    inline = os.environ.pop(INLINE, "")
    if inline:
        with open(os.path.join(folder, LAUNCH), "w", encoding="utf-8") as file:
            file.write(inline)
        return dict(json.loads(inline))
    with open(os.path.join(folder, LAUNCH), encoding="utf-8") as file:
        return dict(json.load(file))


def _prepare(folder: str, said: Mapping[str, Any]) -> None:
    os.environ.update(said["environment"])
    os.environ["PARAMEDIC_LAUNCH"] = os.path.join(folder, LAUNCH)
    os.environ["PARAMEDIC_RESULT"] = os.path.join(folder, "result.json")
    if said["call"]:
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([*([before] if before else []), PACKAGES])
    for name in (WATCH, os.path.join(WATCH, "ranks"), LOGS):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    os.chdir(said["workdir"])


def _run(folder: str, said: Mapping[str, Any], node: int, shared: bool) -> tuple[int, bool]:
    command = torchrun(said, node, os.path.join(folder, LOGS, f"node-{node}"), shared, os.environ)
    watcher = Watcher(
        os.path.join(folder, WATCH), command, _diagnosis, _Lines(), on_hang="kill", told=_say_wrong,
        sure_enough=_SURE, leads=node == 0,
    )  # fmt: skip
    try:
        return watcher.run(shown_by_us=shared), watcher.kind == "hang"
    except CannotStartError as error:
        print(f"paramedic: {error}", flush=True)  # noqa: T201
        return error.code, False


def _say_wrong(watcher: Watcher) -> None:
    """What is wrong with a job that has ended well; a failure is judged by the controller."""
    if watcher.kind == "end" and watcher.verdict is not None and watcher.verdict.verdict is not None:
        watcher.tell(watcher.verdict.verdict.summary)


def torchrun(said: Mapping[str, Any], node: int, logs: str, shared: bool, environment: Mapping[str, str]) -> list[str]:
    """What ranks print goes to a file each; without a shared folder it also goes to where the engine keeps logs."""
    words = [said["python"], "-m", "torch.distributed.run", "--nproc-per-node", str(said["ranks_per_node"])]
    words += ["--max-restarts", "0", *meeting(said["nodes"], node, environment)]
    words += ["--log-dir", logs, "--redirects" if shared else "--tee", "3"]
    return [*words, *said["program"]]


def meeting(nodes: int, node: int, environment: Mapping[str, str]) -> Sequence[str]:
    if nodes == 1:
        return ["--standalone"]
    head = environment.get("PARAMEDIC_HEAD") or environment["PET_MASTER_ADDR"]  # Kubeflow's runtime says it so
    port = environment.get("PARAMEDIC_PORT") or environment["PET_MASTER_PORT"]
    return ["--nnodes", str(nodes), "--node-rank", str(node), "--master-addr", head, "--master-port", port]


def _diagnosis(folder: str, ended: bool = False) -> ShownReport:
    from paramedic.pipeline import diagnose

    return diagnose([folder])


class _Lines:
    """Only what is worth a line, into the engine's log."""

    def show(self, watcher: Watcher) -> None:
        return

    def say(self, text: str) -> None:
        self.print(f"paramedic: {text}\n")

    def print(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""Engines that are there already: each a module with the same few functions. `render` is pure."""

from __future__ import annotations

import json
import os
import signal as signals
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Protocol, cast

from paramedic.run_folder import whole
from paramedic.submit import node
from paramedic.submit.spec import ENGINE, Plan, launch

_KILLED = 128 + signals.SIGKILL


@dataclass(frozen=True, slots=True)
class State:
    """What an engine says about an attempt. `reason` is one of policy.OF_ENGINE, `cancelled`, or empty."""

    phase: Literal["queued", "started", "ended"]
    code: int | None = None
    reason: str = ""
    hosts: tuple[str, ...] = ()
    """Those that failed, once it has ended; else those that it runs on."""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Concern:
    """Something that will (certain) or may go wrong."""

    certain: bool
    text: str


class Engine(Protocol):
    CAN_EXCLUDE: bool

    def render(self, plan: Plan) -> Any: ...
    def check(self, plan: Plan) -> list[Concern]: ...
    def submit(self, plan: Plan) -> str:
        """Starts it, and returns what the engine calls it."""

    def find(self, plan: Plan) -> str | None:
        """What the engine calls an attempt that was submitted before a crash of ours."""

    def poll(self, id: str, plan: Plan) -> State: ...
    def logs(self, id: str, plan: Plan) -> None:
        """Brings what only the engine has into the attempt's folder."""

    def signal(self, id: str, plan: Plan, number: int) -> None: ...
    def cancel(self, id: str, plan: Plan) -> None:
        """Returns once nothing of it runs any more."""


def get(name: str) -> Engine:
    return cast(Engine, import_module(f"{__package__}.{name}"))


def write_launch(plan: Plan) -> None:
    """The attempt's folder, with all that its nodes need."""
    os.makedirs(os.path.join(plan.folder, ENGINE), exist_ok=True)
    with whole(os.path.join(plan.folder, node.LAUNCH)) as file:
        file.write(json.dumps(launch(plan), indent=1).encode())


def exits(plan: Plan) -> dict[int, dict[str, Any]]:
    """What the nodes wrote when they were through."""
    found: dict[int, dict[str, Any]] = {}
    for number in range(plan.spec.nodes):
        try:
            with open(os.path.join(plan.folder, f"exit-{number}.json"), "rb") as file:
                found[number] = dict(json.load(file))
        except (OSError, ValueError):
            continue
    return found


def reason_of(ends: dict[int, dict[str, Any]]) -> str:
    """torchrun itself was killed: it ends with 1 when one of its ranks is."""
    return "agent-lost" if any(end["code"] == _KILLED for end in ends.values()) else ""


def code_of(ends: dict[int, dict[str, Any]]) -> int | None:
    """The job's own exit code: the first that is not 0."""
    codes = [int(end["code"]) for end in ends.values()]
    return next((code for code in codes if code), codes[0] if codes else None)

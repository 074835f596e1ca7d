"""Where a job stands, from its events alone: whoever follows it, also after a crash, goes on from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from paramedic.submit.policy import Failure
from paramedic.submit.spec import Plan, Spec
from paramedic.submit.store import ENDED, JobEvent, Store, phase_of

Next = Literal["plan", "submit", "follow", "judge", "nothing"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a job, as its events tell it."""

    number: int
    tunables: Mapping[str, int] = field(default_factory=dict)
    resume: str = ""
    exclude: tuple[str, ...] = ()
    not_before: float = 0.0
    engine_id: str = ""
    started: float | None = None
    ended: float | None = None
    code: int | None = None
    reason: str = ""
    """What the engine says about the end."""
    hosts: tuple[str, ...] = ()
    failure: Failure | None = None
    action: str = ""
    """What was decided then: stop, retry or replan."""
    why: str = ""
    device_hours: float = 0.0

    @property
    def cause(self) -> str:
        return self.failure.cause if self.failure else ""

    @property
    def went_well(self) -> bool:
        return self.ended is not None and self.code == 0 and not self.reason


@dataclass(frozen=True, slots=True)
class Standing:
    phase: str
    attempts: tuple[Attempt, ...]
    next: Next

    @property
    def failures(self) -> list[Failure]:
        return [one.failure for one in self.attempts if one.failure is not None]


def standing_of(events: Sequence[JobEvent], spec: Spec) -> Standing:
    told: dict[int, dict[str, Any]] = {}
    for event in events:
        if event.attempt:
            _tell(told.setdefault(event.attempt, {"number": event.attempt}), event)
    attempts = tuple(_attempt(values, spec) for _, values in sorted(told.items()))
    phase = phase_of(events)
    return Standing(phase, attempts, _next(phase, attempts))


def _tell(values: dict[str, Any], event: JobEvent) -> None:
    match event.kind, event.text:
        case "attempt", "planned":
            values |= event.fields | {"exclude": tuple(event.fields["exclude"])}
        case "attempt", "submitted":
            values["engine_id"] = event.fields["id"]
        case "phase", "rendezvous":
            values.setdefault("started", event.at)
        case "attempt", "ended":
            values |= event.fields | {"hosts": tuple(event.fields["hosts"]), "ended": event.at}
        case "decision", _:
            said = event.fields["failure"]
            failure = Failure(**said | {"ranks": tuple(said["ranks"]), "hosts": tuple(said["hosts"])})
            values |= {"failure": failure, "action": event.fields["action"], "why": event.text}


def _attempt(values: dict[str, Any], spec: Spec) -> Attempt:
    known = {name: value for name, value in values.items() if name in Attempt.__dataclass_fields__}
    started, ended = known.get("started"), known.get("ended")
    hours = (ended - started) * spec.devices / 3600 if started and ended else 0.0
    return Attempt(**known, device_hours=hours)


def _next(phase: str, attempts: Sequence[Attempt]) -> Next:
    if phase in ENDED:
        return "nothing"
    if not attempts:
        return "plan"
    last = attempts[-1]
    if last.ended is not None:
        return "plan" if last.action in ("retry", "replan") else "judge"
    return "follow" if last.engine_id else "submit"


def plan_of(store: Store, job: str, spec: Spec, attempt: Attempt) -> Plan:
    folder = store.attempt_folder(job, attempt.number)
    return Plan(job, attempt.number, spec, folder, attempt.tunables, attempt.resume, attempt.exclude)

"""Try again? Decided by the diagnosed cause, not by the exit code: pure functions over what is known."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from paramedic.errors import ParamedicError
from paramedic.knowledge.retries import Retry, load_retries
from paramedic.model import Finding
from paramedic.submit.spec import Tunable

Action = Literal["stop", "retry", "replan"]
Replan = Callable[[Mapping[str, int], Mapping[str, Tunable]], Mapping[str, int] | None]
"""`plan(values, limits)`: other values of the tunables that need less memory and compute the same, or None."""
UNKNOWN = "unknown"
_SURE_ENOUGH = 0.25
"""A cause that is less probable than that is no ground for spending GPU hours."""
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+", re.I)

OF_ENGINE: Mapping[str, str] = {
    "preempted": "preemption-or-scheduler-action",
    "time-limit": "preemption-or-scheduler-action",
    "drained": "preemption-or-scheduler-action",
    "node-lost": "hardware-fault",
    "agent-lost": "hardware-fault",
    "out-of-memory": "host-resource-exhaustion",
    "not-granted": "preemption-or-scheduler-action",
}
"""What an engine knows for certain, as a cause."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt failed."""

    cause: str
    probability: float
    fingerprint: str
    said_by: str
    """`diagnosis` or the engine's name."""
    symptom: str = ""
    reason: str = ""
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    progressed: bool = False
    """A newer complete checkpoint than the one that it began with is there."""


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action
    cause: str
    reason: str
    exclude: tuple[str, ...] = ()
    tunables: Mapping[str, int] | None = None
    wait: float = 0.0


def policy_of(chosen: Mapping[str, int | str]) -> dict[str, Retry]:
    """The defaults, and over them what the user said: a number of times, `replan` or `never`."""
    policy = dict(load_retries())
    for cause, said in chosen.items():
        if cause not in policy:
            near = difflib.get_close_matches(cause, policy, n=1)
            hint = f"; did you mean {near[0]}?" if near else " (`paramedic explain` knows the causes)"
            raise ParamedicError(f"retry: {cause}: no such cause{hint}")
        policy[cause] = _changed(policy[cause], cause, said)
    return policy


def _changed(entry: Retry, cause: str, said: int | str) -> Retry:
    if said in ("never", 0):
        return replace(entry, times=0, why="asked for: never")
    if said == "replan":
        return replace(entry, action="replan", times=max(entry.times, 5))
    if isinstance(said, bool) or not isinstance(said, int) or not 0 < said <= 1000:
        raise ParamedicError(f"retry: {cause}: a number of times, 'replan' or 'never', not {said!r}")
    return replace(entry, action="retry", times=said)


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended, before it is diagnosed."""

    engine: str
    reason: str = ""
    code: int | None = None
    hosts: tuple[str, ...] = ()
    last: str = ""
    """The last words of a rank."""
    progressed: bool = False


def failure_of(verdict: Finding | None, ended: Ended) -> Failure:
    """What an engine knows for certain counts before the diagnosis of the logs, which shows what followed from it."""
    if ended.reason in OF_ENGINE and not _says_more(verdict, ended.reason):
        return Failure(
            OF_ENGINE[ended.reason],
            1.0,
            _digest(ended.reason, *ended.hosts),
            ended.engine,
            "worker-or-node-loss",
            ended.reason,
            hosts=ended.hosts,
            progressed=ended.progressed,
        )
    if verdict is None or not verdict.causes:
        same = _digest("exit", str(ended.code), _plain(ended.last))
        return Failure(UNKNOWN, 0.0, same, "diagnosis", "", ended.reason, progressed=ended.progressed)
    cause = verdict.causes[0]
    text = verdict.evidence[0].event.text if verdict.evidence else verdict.summary
    # Which rank it hits is chance where hosts fail, and no news where the program does.
    return Failure(
        cause.id,
        cause.probability,
        _digest(verdict.rule, verdict.symptom, cause.id, _plain(text), *verdict.hosts),
        "diagnosis",
        verdict.symptom,
        ended.reason,
        verdict.ranks,
        verdict.hosts,
        ended.progressed,
    )


def _says_more(verdict: Finding | None, reason: str) -> bool:
    """That the agent is gone may have a cause which the ranks could still tell."""
    return (
        reason == "agent-lost" and verdict is not None and verdict.consequence == "never" and verdict.confidence > 0.8
    )


@dataclass(frozen=True, slots=True)
class Room:
    """What is left to be tried."""

    most_attempts: int
    values: Mapping[str, int]
    """Of the tunables, in the attempt that failed."""
    limits: Mapping[str, Tunable]
    can_exclude: bool = False


def decide(
    policy: Mapping[str, Retry], failures: Sequence[Failure], room: Room, replan: Replan | None = None
) -> Decision:
    """`failures` are those of all attempts so far, the last one last."""
    last = failures[-1]
    entry = policy.get(last.cause)
    if last.reason == "cancelled-outside":
        return Decision("stop", last.cause, "somebody ended it at the engine")
    if entry is None:
        return Decision("stop", last.cause, "the failure was not diagnosed: trying blindly would only repeat it")
    against = next(_against(entry, failures, room.most_attempts), None)
    if against is not None:
        return Decision("stop", last.cause, against)
    if entry.action == "replan":
        return _replanned(last, entry, room, replan or less_memory)
    return _again(last, entry, sum(one.cause == last.cause for one in failures), room.can_exclude)


def _against(entry: Retry, failures: Sequence[Failure], most_attempts: int) -> Iterator[str]:
    """What speaks against another attempt."""
    last = failures[-1]
    if last.said_by == "diagnosis" and last.probability < _SURE_ENOUGH:
        yield f"{last.cause} is the likeliest cause, but only {last.probability:.0%} sure"
    if entry.times == 0:
        yield f"never tried again for {last.cause}: {entry.why}"
    if len(failures) >= most_attempts:
        yield f"{len(failures)} attempts were made, as many as are allowed"
    if last.reason == "time-limit" and not last.progressed:
        yield "the time limit came before a new checkpoint: it would come again"
    same = _repeats(failures)
    # An engine knows that it took the machine; a diagnosis only concludes it from a signal.
    allowed = min(entry.repeats, 1) if last.said_by == "diagnosis" else entry.repeats
    if same > allowed and entry.action != "replan":
        yield f"the same failure came {same + 1} times without a newer checkpoint"
    if sum(one.cause == last.cause for one in failures) > entry.times:
        yield f"{last.cause}: tried again {entry.times} times already"


def _again(last: Failure, entry: Retry, spent: int, can_exclude: bool) -> Decision:
    exclude = last.hosts if entry.exclude and can_exclude else ()
    without = f", without {', '.join(exclude)}" if exclude else ""
    reason = f"{last.cause}: {entry.why}; try {spent} of {entry.times}{without}"
    return Decision("retry", last.cause, reason, exclude, None, entry.wait * spent)


def _replanned(last: Failure, entry: Retry, room: Room, replan: Replan) -> Decision:
    values = room.values
    found = replan(values, room.limits) if room.limits else None
    if found is None:
        why = "no tunable can be lowered further" if room.limits else "no tunables were declared"
        return Decision("stop", last.cause, f"{last.cause}: {why}: the same memory would not do again")
    changes = ", ".join(f"{name} {values[name]} → {found[name]}" for name in found if found[name] != values[name])
    return Decision("replan", last.cause, f"{last.cause}: {entry.why}: {changes}", tunables=found)


def less_memory(values: Mapping[str, int], limits: Mapping[str, Tunable]) -> Mapping[str, int] | None:
    """Half the micro-batch, twice the accumulation: the batch stays the same, so nothing else has to be changed."""
    batch, steps = values.get("micro_batch"), values.get("accumulation")
    if batch is None or steps is None or batch % 2:
        return None
    if batch // 2 < limits["micro_batch"].low or steps * 2 > limits["accumulation"].high:
        return None
    return {**values, "micro_batch": batch // 2, "accumulation": steps * 2}


def _repeats(failures: Sequence[Failure]) -> int:
    """How often the last failure came before, one after the other, with nothing gained in between."""
    last, count = failures[-1], 0
    if last.progressed:
        return 0
    for one in reversed(failures[:-1]):
        if one.fingerprint != last.fingerprint:
            break
        count += 1
        if one.progressed:
            break
    return count


def _plain(text: str) -> str:
    """Without what differs from run to run."""
    return _NUMBERS.sub("#", text.strip())[:400]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:12]

"""`@paramedic.job` and the handle of a submitted job, which is good for as long as its entry is in the store."""

from __future__ import annotations

import functools
import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paramedic.errors import ParamedicError
from paramedic.submit import code, controller, engines, policy, preflight, rank_logs
from paramedic.submit.follow import lines
from paramedic.submit.spec import Plan, Spec, checked, names_python, tunable
from paramedic.submit.standing import Attempt, Standing, plan_of, standing_of
from paramedic.submit.store import ENDED, Entry, JobEvent, Store, StoreError

if TYPE_CHECKING:
    from paramedic.report import ShownReport

_POLL = 0.1
_CANCEL_PATIENCE = 20.0


class RankFailed(ParamedicError):  # noqa: N818 - the name says what happened
    """A job that failed: the failing rank's own words, and the verdict."""

    def __init__(self, job: str, ranks: tuple[int, ...], text: str, verdict: str, why: str) -> None:
        who = f"rank {ranks[0]}" if ranks else "the job"
        super().__init__("\n".join(part for part in (f"{job}: {who} failed: {verdict}", text, why) if part))
        self.job, self.ranks, self.text, self.verdict, self.why = job, ranks, text, verdict, why


class JobCancelled(ParamedicError):  # noqa: N818
    """The job was cancelled: it has no result."""


class Job:
    """The handle. Any process of the same user can have it, by the job's id."""

    def __init__(self, id: str, root: str | None = None, store: Store | None = None) -> None:
        self._store = store or Store(root)
        self._entry = self._store.entry(id)
        self.id = self._entry.id

    def __repr__(self) -> str:
        return f"<Job {self.id}: {self.status}>"

    @property
    def spec(self) -> Spec:
        return self._entry.spec

    @property
    def standing(self) -> Standing:
        return standing_of(self._store.events(self.id), self.spec)

    @property
    def status(self) -> str:
        """Its phase: plan, preflight, queued, rendezvous, running, diagnosing, retrying, done, failed or cancelled."""
        controller.ensure(self._store, self._entry)
        return self.standing.phase

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return self.standing.attempts

    def events(self, follow: bool = False) -> Iterator[JobEvent]:
        """All that happened so far; with `follow`, also what happens until the job has ended."""
        seen = 0
        while True:
            found = self._store.events(self.id, seen)
            yield from found
            seen = found[-1].seq if found else seen
            if not follow or self.standing.phase in ENDED:
                yield from self._store.events(self.id, seen) if follow else ()
                return
            controller.ensure(self._store, self._entry)
            time.sleep(_POLL)

    def folder(self, attempt: int = 0) -> str:
        """Where an attempt's files are; the last one's, unless said."""
        number = attempt or len(self.attempts) or 1
        return self._store.attempt_folder(self.id, number)

    def logs(self, rank: int | None = None, follow: bool = False, attempt: int = 0) -> Iterator[str]:
        """What the ranks print, line by line."""
        return lines(self, rank, follow, attempt)

    @property
    def report(self) -> ShownReport | None:
        """The diagnosis of the last attempt that failed."""
        from paramedic.submit.judge import diagnosis

        failed = [one for one in self.attempts if one.ended is not None and not one.went_well]
        return diagnosis(self.folder(failed[-1].number)) if failed else None

    def wait(self, timeout: float | None = None) -> str:
        """Until it has ended: the last phase."""
        until = None if timeout is None else time.monotonic() + timeout
        while (phase := self.status) not in ENDED:
            if until is not None and time.monotonic() > until:
                raise TimeoutError(f"{self.id}: still {phase} after {timeout} s")
            time.sleep(_POLL)
        return phase

    def result(self, timeout: float | None = None) -> Any:
        """What the function returned on rank 0. Raises RankFailed, or JobCancelled."""
        phase = self.wait(timeout)
        if phase == "cancelled":
            raise JobCancelled(f"{self.id}: was cancelled")
        if phase == "failed":
            raise self.failure()
        try:
            with open(os.path.join(self.folder(), "result.json"), encoding="utf-8") as file:
                return json.load(file)["result"]
        except FileNotFoundError:
            return None

    def failure(self) -> RankFailed:
        why = next((e.fields.get("why", "") for e in reversed(list(self.events())) if e.text == "failed"), "")
        report = self.report
        verdict = report.verdict if report else None
        ranks = verdict.ranks if verdict else ()
        said = verdict.summary if verdict else "the failure was not diagnosed"
        return RankFailed(self.id, ranks, self._last_words(ranks), said, why)

    def _last_words(self, ranks: tuple[int, ...]) -> str:
        found = rank_logs.files(self.folder(), self.spec.ranks_per_node)
        for path in found.get(ranks[0] if ranks else 0, [])[::-1]:
            if text := rank_logs.tail(path):
                return "\n".join(text.split("\n")[-40:])
        return ""

    def cancel(self) -> str:
        """Ends it, with all that it started, whatever state its controller is in. Returns its last phase."""
        controller.want_cancel(self._store, self.id)
        until = time.monotonic() + _CANCEL_PATIENCE
        while time.monotonic() < until:
            try:
                if (phase := self.status) in ENDED:
                    return phase
            except StoreError:
                break
            time.sleep(_POLL)
        self._end_directly()
        return self.standing.phase

    def _end_directly(self) -> None:
        """The controller is stuck, or the store is: what runs is ended here, and the next controller notes it."""
        standing = self.standing
        if standing.attempts:
            attempt = standing.attempts[-1]
            plan = plan_of(self._store, self.id, self.spec, attempt)
            controller.end_attempt(engines.get(self.spec.engine), attempt, plan)


# -- submitting ----------------------------------------------------------------------------------------------------


def start(spec: Spec, key: str | None = None, root: str | None = None) -> Job:
    """Preflight, then the entry in the store, then its controller: before the entry is there, nothing is started."""
    if code.inside_job():
        raise ParamedicError("a job submits itself again: guard it with `if __name__ == '__main__':`")
    spec = checked(spec)
    policy.policy_of(spec.retry)
    store = Store(root)
    id = f"{spec.name}-{secrets.token_hex(4)}"
    plan = first_plan(spec, id, store.root)
    found = preflight.concerns(plan)
    certain = [one.text for one in found if one.certain]
    if certain and not spec.force:
        raise ParamedicError(f"will fail for certain (--force starts it all the same): {'; '.join(certain)}")
    entry: Entry = store.add(id, spec, key)
    if entry.id == id:
        store.append(id, "phase", "preflight", concerns=[one.text for one in found])
    controller.ensure(store, entry)
    return Job(entry.id, store=store)


def first_plan(spec: Spec, id: str, root: str) -> Plan:
    values = {name: one.value for name, one in spec.tunable.items()}
    return Plan(id, 1, spec, os.path.join(root, "jobs", id, "attempt-1"), values)


def python_of(command: tuple[str, ...]) -> str:
    """The Python that the command names, as it is found here; else the one that runs us."""
    if names_python(command):
        return shutil.which(command[0]) or command[0]
    return sys.executable


def plain_name(text: str) -> str:
    """Something that every engine takes for a name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "job"


class JobFunction:
    """A decorated function: still callable as it is; `submit` runs it on many ranks."""

    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._settings = function, settings

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._function(*arguments, **named)

    def submit(
        self,
        *arguments: Any,
        engine: str = "local",
        nodes: int = 1,
        key: str | None = None,
        force: bool = False,
        options: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        root: str | None = None,
        **named: Any,
    ) -> Job:
        """`options` are the engine's own: a partition, a namespace, an address."""
        if code.inside_job():
            raise ParamedicError("a job submits itself again: guard it with `if __name__ == '__main__':`")
        spec = self.spec(arguments, named, engine, nodes)
        store = Store(root)
        spec = replace(
            spec,
            code=code.ship(spec.workdir, store.root),
            force=force,
            options={name: str(value) for name, value in (options or {}).items()},
            environment=dict(environment or {}),
        )
        return start(spec, key, store.root)

    def spec(self, arguments: tuple[Any, ...], named: dict[str, Any], engine: str, nodes: int) -> Spec:
        settings = dict(self._settings)
        world = settings.pop("world_size")
        if nodes < 1 or world % nodes:
            raise ParamedicError(f"{world} ranks cannot be shared out evenly among {nodes} nodes")
        function, folder = code.named(self._function)
        given = code.json_arguments(arguments, named)
        values = {**(given[0][0] if given[0] and isinstance(given[0][0], dict) else {}), **given[1]}
        bounds = settings.pop("tunable")
        missing = [name for name in bounds if name not in values]
        if missing:
            raise ParamedicError(f"tunable {missing[0]}: the arguments do not name its value")
        return checked(
            Spec(
                name=settings.pop("name") or plain_name(self._function.__name__),
                engine=engine,
                python=sys.executable,
                workdir=folder,
                function=function,
                arguments=given,
                nodes=nodes,
                ranks_per_node=world // nodes,
                tunable={name: tunable(name, values[name], limits) for name, limits in bounds.items()},
                **settings,
            )
        )


def job(
    *,
    world_size: int = 1,
    gpus_per_rank: int = 0,
    cpus_per_rank: int = 1,
    checkpoint: str = "",
    tunable: Mapping[str, tuple[int, int]] | None = None,
    step: str = "",
    retry: Mapping[str, int | str] | None = None,
    most_attempts: int = 10,
    time_limit_s: int = 0,
    name: str = "",
) -> Callable[[Callable[..., Any]], JobFunction]:
    """Marks a function that can be submitted: `train.submit(cfg, engine="slurm", nodes=2)`.

    `step` describes its step as `paramedic memory estimate` takes it: it is estimated before the launch, and
    `replan` looks there for the micro-batch that fits.
    """
    settings = {
        "world_size": world_size,
        "gpus_per_rank": gpus_per_rank,
        "cpus_per_rank": cpus_per_rank,
        "checkpoint": os.path.abspath(checkpoint) if checkpoint else "",
        "tunable": dict(tunable or {}),
        "step": step,
        "retry": dict(retry or {}),
        "most_attempts": most_attempts,
        "time_limit_s": time_limit_s,
        "name": name,
    }
    policy.policy_of(retry or {})
    return lambda function: JobFunction(function, settings)

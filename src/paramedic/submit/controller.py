"""Follows one job from its plan to its end. It can be killed at any moment: the next one goes on where the events stop,
and asks the engine what has happened meanwhile.

    python -m paramedic.submit.controller ROOT JOB
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.submit import engines, fits, policy, rank_logs, resume
from paramedic.submit.code import inside_job, ours
from paramedic.submit.engines import Engine, State
from paramedic.submit.judge import judge
from paramedic.submit.spec import MARK, WATCH, Plan
from paramedic.submit.standing import Attempt, Standing, plan_of, standing_of
from paramedic.submit.store import ENDED, Entry, Store, StoreError, phase_of
from paramedic.watch.pulse import read_states

_LOCK, _CANCEL = "controller.lock", "cancel"
_PERIOD = {"local": 0.2, "ray": 1.0, "slurm": 1.0, "kubernetes": 3.0}
_TIMED_BY_US = ("local", "ray")
_FETCHED, _FETCH_PERIOD, _SELDOM = ("kubernetes",), 10.0, 50
"""Their ranks write where we do not see it: all of it is asked for anew, the more seldom the longer that takes."""
_STORE_AGAIN = 0.5
_BEGINS = 20.0
_BROKE = "internal error: "


class Controller:
    def __init__(self, store: Store, entry: Entry, took_over: bool) -> None:
        self.store, self.entry = store, entry
        self.spec = entry.spec
        self.engine: Engine = engines.get(self.spec.engine)
        self.took_over = took_over
        """Then what was submitted last may not be in the events."""

    def run(self) -> None:
        while True:
            standing = standing_of(self._events(), self.spec)
            if standing.next == "nothing":
                return
            if wants_cancel(self.store, self.entry.id):
                self._cancel(standing)
            else:
                {"plan": self._plan, "submit": self._submit, "follow": self._follow, "judge": self._judge}[
                    standing.next
                ](standing)

    # -- steps: each ends with an event ------------------------------------------------------------------------------

    def _plan(self, standing: Standing) -> None:
        number = len(standing.attempts) + 1
        last = standing.attempts[-1] if standing.attempts else None
        found = self._resume(number)
        tunables = dict(last.tunables) if last else {name: one.value for name, one in self.spec.tunable.items()}
        exclude = last.exclude if last else ()
        not_before = 0.0
        if last:
            decided = self._decision(last)
            tunables |= decided["tunables"] or {}
            exclude = tuple(dict.fromkeys((*exclude, *decided["exclude"])))
            not_before = time.time() + decided["wait"]
        self.note(
            "attempt", "planned", number, tunables=tunables, resume=found, exclude=exclude, not_before=not_before
        )  # fmt: skip

    def _decision(self, last: Attempt) -> dict[str, Any]:
        return next(e.fields for e in reversed(self._events()) if e.kind == "decision" and e.attempt == last.number)

    def _resume(self, number: int) -> str:
        if not self.spec.checkpoint:
            return ""
        found, skipped = resume.newest(self.spec.checkpoint, self.spec.world_size)
        for one in skipped:
            self.note("checkpoint", f"skipped {one.path}: {one.why_not}", number, path=one.path, why=one.why_not)
        if found is not None:
            self.note("checkpoint", f"goes on from {found.path}", number, path=found.path, step=found.step)
        return found.path if found else ""

    def _submit(self, standing: Standing) -> None:
        attempt = standing.attempts[-1]
        plan = self._plan_of(attempt)
        while time.time() < attempt.not_before:
            if wants_cancel(self.store, self.entry.id):
                return
            time.sleep(0.1)
        try:
            id = self._given(plan)
        except (ParamedicError, OSError) as error:
            self.note("attempt", "ended", plan.number, code=None, reason="refused", hosts=(), said=str(error))
            return
        self.took_over = False
        self.note("attempt", "submitted", plan.number, id=id)
        self.note("phase", "queued", plan.number)

    def _given(self, plan: Plan) -> str:
        """A later attempt does not fail because the engine is away for a moment."""
        for pause in (2.0, 10.0) if plan.number > 1 else ():
            try:
                return (self.engine.find(plan) if self.took_over else None) or self.engine.submit(plan)
            except (ParamedicError, OSError) as error:
                self.note("controller", f"the engine refuses it: {error}", plan.number)
                self.took_over = True
                time.sleep(pause)
        return (self.engine.find(plan) if self.took_over else None) or self.engine.submit(plan)

    def _follow(self, standing: Standing) -> None:
        attempt = standing.attempts[-1]
        plan, phase, started = self._plan_of(attempt), standing.phase, attempt.started
        due = 0.0
        while True:
            if wants_cancel(self.store, self.entry.id):
                return
            state = self._poll(attempt.engine_id, plan)
            if state.phase != "queued" and phase in ("queued", "retrying", "preflight", "plan"):
                phase, started = self._enter("rendezvous", plan), time.time()
            if phase == "rendezvous" and _has_met(plan):
                phase = self._enter("running", plan)
            if state.phase == "ended":
                break
            limit = self.spec.time_limit_s if self.spec.engine in _TIMED_BY_US else 0
            if limit and started and time.time() - started > limit:
                state = State("ended", None, "time-limit", (), f"it ran for more than {limit} s")
                break
            if self.spec.engine in _FETCHED and started and (began := time.monotonic()) > due:
                with contextlib.suppress(ParamedicError, OSError):  # a pod may not have begun to write
                    self.engine.logs(attempt.engine_id, plan)
                ended = time.monotonic()
                due = ended + max(_FETCH_PERIOD, _SELDOM * (ended - began))
            time.sleep(_PERIOD[self.spec.engine])
        self._ended(attempt.engine_id, plan, state)

    def _ended(self, id: str, plan: Plan, state: State) -> None:
        """Whatever is left of it is ended, before anything is decided: two attempts never run at a time."""
        self._try(lambda: self.engine.logs(id, plan))
        if not (state.code == 0 and not state.reason and self.spec.engine == "local"):
            self._try(lambda: self.engine.cancel(id, plan))
        rank_logs.settle(plan.folder, self.spec.ranks_per_node)
        self.note(
            "attempt", "ended", plan.number, code=state.code, reason=state.reason, hosts=state.hosts, said=state.text
        )  # fmt: skip

    def _judge(self, standing: Standing) -> None:
        attempt = standing.attempts[-1]
        if attempt.went_well:
            self.note("phase", "done", attempt.number)
            return
        if attempt.action == "stop":  # decided just before a crash
            self.note("phase", "failed", attempt.number, why=attempt.why)
            return
        plan = self._plan_of(attempt)
        self._enter("diagnosing", plan)
        if attempt.reason == "refused":
            text = next(e.fields["said"] for e in reversed(self._events()) if e.text == "ended")
            self.note("phase", "failed", attempt.number, why=f"it could not be submitted: {text}")
            return
        failure = judge(plan, attempt, self.spec.engine)
        room = policy.Room(self.spec.most_attempts, attempt.tunables, self.spec.tunable, self.engine.CAN_EXCLUDE)
        chosen, failures = policy.policy_of(self.spec.retry), [*standing.failures, failure]
        decision = policy.decide(chosen, failures, room, fits.smaller(self.spec))
        said = {**asdict(decision), "failure": asdict(failure)}
        self.note("decision", said.pop("reason"), plan.number, **said)
        if decision.action == "stop":
            self.note("phase", "failed", plan.number, why=decision.reason)
        else:
            self._enter("retrying", plan)

    def _cancel(self, standing: Standing) -> None:
        """Also what was submitted a moment before a crash, and did not come into the events."""
        if standing.attempts and standing.attempts[-1].ended is None:
            attempt = standing.attempts[-1]
            plan = self._plan_of(attempt)
            end_attempt(self.engine, attempt, plan)
            self._try(lambda: self.engine.logs(attempt.engine_id, plan))
            rank_logs.settle(plan.folder, self.spec.ranks_per_node)
            self.note("attempt", "ended", attempt.number, code=None, reason="cancelled", hosts=(), said="cancelled")
        self.note("phase", "cancelled", len(standing.attempts))

    def broke(self, error: Exception) -> None:
        """An error of ours: the job goes on, and the next controller tries; after the third one it is given up."""
        text = f"{_BROKE}{type(error).__name__}: {error}"
        self.note("controller", text)
        if sum(event.kind == "controller" and event.text.startswith(_BROKE) for event in self._events()) >= 3:
            standing = standing_of(self._events(), self.spec)
            if standing.attempts and standing.attempts[-1].ended is None:
                self._try(lambda: end_attempt(self.engine, standing.attempts[-1], self._plan_of(standing.attempts[-1])))
            self.note("phase", "failed", len(standing.attempts), why=text)

    # -- small things ------------------------------------------------------------------------------------------------

    def _plan_of(self, attempt: Attempt) -> Plan:
        return plan_of(self.store, self.entry.id, self.spec, attempt)

    def _enter(self, phase: str, plan: Plan) -> str:
        self.note("phase", phase, plan.number)
        return phase

    def _poll(self, id: str, plan: Plan) -> State:
        """An engine that does not answer for a while has not ended the job."""
        complained = False
        while True:
            try:
                return self.engine.poll(id, plan)
            except (ParamedicError, OSError) as error:
                if not complained:
                    complained = True
                    self.note("controller", f"the engine does not answer: {error}", plan.number)
                if wants_cancel(self.store, self.entry.id):
                    return State("started")
                time.sleep(_PERIOD[self.spec.engine])

    def _try(self, work: Any) -> None:
        try:
            work()
        except (ParamedicError, OSError) as error:
            self.note("controller", str(error))

    def _events(self) -> list[Any]:
        while True:
            with contextlib.suppress(StoreError):
                return self.store.events(self.entry.id)
            time.sleep(_STORE_AGAIN)

    def note(self, kind: str, text: str, attempt: int = 0, **fields: Any) -> None:
        """A store that is locked, or a full disk, makes us wait; the job goes on meanwhile."""
        while True:
            try:
                self.store.append(self.entry.id, kind, text, attempt, **fields)
                return
            except StoreError as error:
                print(f"{time.ctime()} {error}", flush=True)  # noqa: T201 - into controller.log
                time.sleep(_STORE_AGAIN)


def end_attempt(engine: Engine, attempt: Attempt, plan: Plan) -> None:
    id = attempt.engine_id or engine.find(plan)
    if id:
        engine.cancel(id, plan)


def _has_met(plan: Plan) -> bool:
    """All its ranks have begun, and one of them has got beyond its imports."""
    states = read_states(os.path.join(plan.folder, WATCH))
    return len(states) >= plan.spec.world_size and any(one.get("stage") != "starting" for one in states.values())


# -- one at a time -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def held(folder: str) -> Iterator[bool]:
    """Whether we are the job's only controller now."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, _LOCK), "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def is_followed(folder: str) -> bool:
    with held(folder) as ours:
        return not ours


def want_cancel(store: Store, job: str) -> None:
    """A file: it can be made while the store is locked, and on a full disk."""
    os.makedirs(store.folder(job), exist_ok=True)
    with open(os.path.join(store.folder(job), _CANCEL), "ab"):
        pass


def wants_cancel(store: Store, job: str) -> bool:
    return os.path.exists(os.path.join(store.folder(job), _CANCEL))


def ensure(store: Store, entry: Entry) -> None:
    """Starts a controller for a job that has none and has not ended."""
    if inside_job() or phase_of(store.events(entry.id)) in ENDED or is_followed(store.folder(entry.id)):
        return
    kept = {name: value for name, value in os.environ.items() if name != MARK and not name.startswith("PARAMEDIC_J")}
    log = os.path.join(store.folder(entry.id), "controller.log")
    with open(log, "ab") as file:
        process = subprocess.Popen(
            ours("controller", store.root, entry.id),
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=kept, start_new_session=True,
        )  # fmt: skip
    _await(process, store, entry, log)


def _await(process: subprocess.Popen[bytes], store: Store, entry: Entry, log: str) -> None:
    """Until it has begun: one that cannot is said at once, and not started again and again."""
    until = time.monotonic() + _BEGINS
    while process.poll() is None and time.monotonic() < until:
        if is_followed(store.folder(entry.id)):
            process.returncode = 0  # it outlives us
            return
        time.sleep(0.02)
    if process.poll() and phase_of(store.events(entry.id)) not in ENDED:
        last = rank_logs.tail(log).split("\n")[-1]
        raise ParamedicError(f"{entry.id}: its controller cannot run: {last} ({log})")


def main(root: str, job: str) -> None:
    store = Store(root, patience=5.0)
    with held(store.folder(job)) as ours:
        if not ours:
            return
        while True:
            try:
                entry = store.entry(job)
                took_over = any(event.kind == "controller" for event in store.events(job))
                break
            except StoreError:
                time.sleep(_STORE_AGAIN)
        controller = Controller(store, entry, took_over)
        text = "goes on where the former one stopped" if took_over else "begins"
        controller.note("controller", text, pid=os.getpid())
        try:
            controller.run()
        except Exception as error:
            controller.broke(error)
            raise


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

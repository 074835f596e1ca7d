"""The watcher: starts the user's command as it is, looks at its ranks once a second, and asks the pipeline when
something is wrong.

Nothing here is in the way of the job: its output goes through the keeper, its ranks write files, and when the watcher
dies they go on without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from paramedic.errors import ParamedicError
from paramedic.report import ShownReport
from paramedic.watch import judge, keeper, pulse
from paramedic.watch.folder import Folder
from paramedic.watch.gpus import Gpus
from paramedic.watch.memory import Memory, host_limit
from paramedic.watch.process import processes, tree_of
from paramedic.watch.pulse import Pulse

AGENT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "rank", "site")
_LOOK_EVERY, _POLL = 1.0, 0.1
_ANSWER_S, _AGAIN_S, _BETWEEN_S = 4.0, 2.0, 1.5
_SLOW_EVERY, _SLOWLY = 5.0, 30.0  # seconds at first, then ever more seldom
_CLOCK_S = 2.0  # by so much the kernel may correct the time of its start
_PATIENCE_AT_END = 5.0
_ON_ITS_WAY = 3  # signs of progress of every rank; what is done on the way out gives one or two
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Diagnose(Protocol):
    def __call__(self, folder: str, ended: bool = False) -> ShownReport: ...


class View(Protocol):
    """Whatever shows the job to people while it runs."""

    def show(self, watcher: Watcher) -> None: ...
    def say(self, text: str) -> None: ...
    def print(self, text: str) -> None: ...


Marks = Mapping[int, tuple[int, int, int]]
"""Of each rank its process, how far it has come, and its steps."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the ranks stood when they were last asked, and how they then were."""

    suspicion: judge.Suspicion
    marks: Marks
    ranks: Mapping[int, Mapping[str, Any]]


@dataclass(slots=True)
class Watcher:
    """One watched command. `pulses` are its ranks; `verdict` is set once."""

    folder: str
    command: Sequence[str]
    diagnose: Diagnose
    view: View
    on_hang: str = "report"
    after: Callable[[Watcher], None] = lambda _: None
    told: Callable[[Watcher], None] = lambda _: None
    """Called with a verdict as soon as there is one: a job that hangs may never end."""
    ended: Callable[[], None] = lambda: None
    """Called once the job has ended, before it is judged: what other nodes still have to say."""
    leads: bool = True
    """Of several nodes that share the folder, one judges; the others look at their own processes for it."""
    record: Mapping[str, object] | None = None
    """How ranks are to record what they send, get and compute."""
    sure_enough: float = 0.0
    """A hang that is less sure is only ended when it has lasted for `unsure_s` seconds more."""
    unsure_s: float = 600.0
    pulses: dict[int, Pulse] = field(default_factory=dict)
    verdict: ShownReport | None = None
    kind: str = ""
    events: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    host: str = field(default_factory=socket.gethostname)
    memory: Memory = field(default_factory=Memory)
    gpus: Gpus = field(default_factory=Gpus)
    files: Folder = field(init=False)
    _child: subprocess.Popen[bytes] | None = None
    _asked: int = 0
    _looked_at: Marks = field(default_factory=dict)
    _standing: Standing | None = None
    _hangs_since: float = 0.0
    _slow_next: float = 0.0
    _told: set[str] = field(default_factory=set)
    _killed: bool = False

    def __post_init__(self) -> None:
        self.files = Folder(self.folder)

    # -- the job ---------------------------------------------------------------------------------------------------

    def run(self, shown_by_us: bool) -> int:
        """The exit code is the command's own; 124 when a hang was ended, 127 and 126 when it cannot be started."""
        name = "console.log" if self.leads else f"console-{self.host}-{os.getpid()}.log"
        console = os.path.join(self.folder, name)
        kept = keeper.start(console, shown_by_us)
        try:
            self._child = subprocess.Popen(
                list(self.command), stdout=kept.out, stderr=kept.err, env=environment(self.folder, self.record)
            )
        except OSError as error:
            kept.close()
            os.waitpid(kept.pid, 0)
            with contextlib.suppress(OSError):
                os.unlink(console)
            raise CannotStartError(self.command[0], error) from None
        kept.close()
        with self._signals(self._child):
            code = self._watch(self._child)
        _await_end(kept.pid)
        self._guarded(self.ended)
        self._guarded(lambda: self._finish(code))
        return 124 if self._killed else 128 - code if code < 0 else code

    def _watch(self, child: subprocess.Popen[bytes]) -> int:
        following = time.monotonic()
        while True:
            try:
                return child.wait(timeout=_POLL)
            except subprocess.TimeoutExpired:
                pass
            if time.monotonic() >= following:
                following = time.monotonic() + _LOOK_EVERY
                self._guarded(self.look)
                self._guarded(lambda: self.view.show(self))
                self._guarded(lambda: self.after(self))

    def _guarded(self, work: Callable[[], None]) -> None:
        """Whatever goes wrong here, the job goes on, and its exit code is passed through."""
        try:
            work()
        except Exception as error:
            if os.environ.get("PARAMEDIC_DEBUG"):
                raise
            text = f"watching failed: {type(error).__name__}: {error}"
            if text not in self._told:
                self._told.add(text)
                self.view.say(text)

    @contextlib.contextmanager
    def _signals(self, child: subprocess.Popen[bytes]) -> Any:
        """Ctrl-C reaches the job by itself; what is sent to us alone is passed on."""

        def forward(number: int, _: Any) -> None:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)

        before = {number: signal.signal(number, forward) for number in _FORWARDED}
        before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # -- looking ---------------------------------------------------------------------------------------------------

    def look(self) -> None:
        now = time.monotonic()
        states = pulse.read_states(self.folder)
        marks = _marks(states)
        for rank, state in states.items():
            one = self.pulses.setdefault(rank, Pulse(rank, moved=now, beat=now))
            pulse.look(one, state, self.host, now)
        self.memory.look(self.pulses)
        if self.gpus.look(now):
            self.files.write_gpus(self.host, self.gpus.told())
        if not self.leads:
            self._serve()
            return
        said = self.verdict is not None and self.kind == "hang"
        if not self._killed and self._goes_on(marks):  # mpirun wakes stopped ranks before it ends them
            if said:
                self._take_back(marks)
            self._forget()
        elif said and now > self._hangs_since + self.unsure_s:
            self._end_hang(0.0)
        if self.verdict is None:
            suspected = judge.suspicion(self.pulses, self.size, now, self.started)
            if suspected is not None:
                self._suspect(suspected, marks)
        if now >= self._slow_next and self.verdict is None:
            self._slow_next = now + max(_SLOW_EVERY, (now - self.started) / _SLOWLY)
            self._warn()

    @property
    def size(self) -> int | None:
        sizes = [int(one.state.get("world_size") or 0) for one in self.pulses.values()]
        return max(sizes, default=0) or None

    def _suspect(self, suspected: judge.Suspicion, marks: Marks) -> None:
        """Asks every rank where it stands, twice: only who stands at the same place both times is stuck."""
        if suspected.level == "look" and marks == self._looked_at:
            return
        self._looked_at = marks
        for pause in (0.0, _BETWEEN_S):
            time.sleep(pause)  # the pause is the measurement: who stands where he stood before?
            self._ask()
            if _marks(pulse.read_states(self.folder)) != marks:
                self._forget()
                return
        self._standing = Standing(suspected, marks, {rank: one.told for rank, one in self.pulses.items()})
        self._write_job(suspected)
        self.files.write_processes(self.pulses.values())
        report = self.diagnose(self.folder)
        found = report.verdict
        if _marks(pulse.read_states(self.folder)) != marks:
            self._forget()
        elif self._child is not None and self._child.poll() is not None:
            return  # it has ended meanwhile: what was recorded is for the last verdict
        elif found is not None and (suspected.level == "overdue" or judge.is_settled(found, report.run, self.pulses)):
            self._conclude(report, "hang")
            self._hangs_since = time.monotonic()
            self._end_hang(self.sure_enough)

    def _goes_on(self, marks: Marks) -> bool:
        """Since the ranks were asked they have come further. That some failed, or left their call to end, is no
        progress."""
        if self._standing is None or marks == self._standing.marks:
            return False
        before, was = self._standing.marks, self._standing.ranks
        if _again(before, marks):
            return True
        over = {rank for rank, one in self.pulses.items() if one.condition in ("ended", "failed", "gone")}
        died = {rank for rank in over if self.pulses[rank].condition != "ended"}
        if any(was.get(rank, {}).get("condition") not in ("failed", "gone") for rank in died):
            return False
        gained = [one[1] - before[rank][1] for rank, one in marks.items() if rank in before and rank not in over]
        stepped = any(rank in before and one[2] > before[rank][2] for rank, one in marks.items())
        return stepped or (bool(gained) and min(gained) >= _ON_ITS_WAY)

    def _forget(self) -> None:
        self._standing = None
        self.files.forget()

    def _end_hang(self, sure_enough: float) -> None:
        found = self.verdict.verdict if self.verdict else None
        if self.on_hang == "kill" and not self._killed and found is not None and found.confidence >= sure_enough:
            self._end()

    def _serve(self) -> None:
        """On a node that does not lead: says how its own processes are when it is asked, and ends with the others."""
        asked = self.files.asked()
        if asked > self._asked:
            self._asked = asked
            self.files.write_processes(self.pulses.values())
        if self.on_hang == "kill" and not self._killed and self.files.marked() == "hang":
            self._end()

    def _take_back(self, marks: Marks) -> None:
        """Whoever was said to hang has come back, or the launcher has begun anew."""
        again = self._standing is not None and _again(self._standing.marks, marks)
        self.tell("the ranks were started again" if again else "the ranks make progress again: it only took long")
        self.verdict, self.kind = None, ""

    def _ask(self) -> None:
        self._asked += 1
        self.files.ask(self._asked)
        until = time.monotonic() + (_ANSWER_S if self._asked == 1 else _AGAIN_S)
        while time.monotonic() < until and not self._answered():
            time.sleep(_POLL)
        for one in self.pulses.values():
            if one.condition == "frozen":
                _signal_for_stack(one)

    def _answered(self) -> bool:
        states = pulse.read_states(self.folder)
        able = [
            rank for rank, one in self.pulses.items() if one.condition not in ("gone", "stopped", "frozen", "ended")
        ]
        met = [rank for rank in able if self.pulses[rank].state.get("groups")]  # the others have recorded nothing
        return self.files.traced(met) and all(
            (states.get(rank) or {}).get("answered", 0) >= self._asked for rank in able
        )

    def _warn(self) -> None:
        """Slow ranks, replicas that part, memory that grows: said once, while the job goes on."""
        if not any(one.steps for one in self.pulses.values()):
            return
        self._write_job(self._standing.suspicion if self._standing else None)
        report = self.diagnose(os.path.join(self.folder, "ranks"))
        for one in report.findings:
            if one.rule in self._told:
                continue
            self._told.add(one.rule)
            self.tell(one.summary)
            if one.symptom == "straggler-or-imbalance":
                self.files.mark("straggler")

    def tell(self, text: str) -> None:
        self.events.append(text)
        self.view.say(text)

    def _write_job(
        self,
        suspected: judge.Suspicion | None,
        code: int | None = None,
        ranks: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        """What the watcher itself saw, for whoever reads the folder."""
        seen = ranks if ranks is not None else {rank: one.told for rank, one in self.pulses.items()}
        said = {
            "paramedic_job": 1,
            "command": list(self.command)[:64],
            "host": self.host,
            "watched_s": round(time.monotonic() - self.started, 1),
            "exit": code,
            "suspected": suspected.told if suspected else None,
            "memory": self.memory.series(),
            "host_limit": host_limit(),
            "ranks": {str(rank): about for rank, about in seen.items()},
        }
        self.files.write_job(said)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _finish(self, code: int) -> None:
        self.look()
        if self.leads and not self._killed:
            self._judge_end(code)
        self.after(self)

    def _judge_end(self, code: int) -> None:
        """A hang that a timeout has ended is still a hang: where the ranks stood then tells more than their errors."""
        if code == 0:
            if self.kind == "hang":
                self._take_back(_marks(pulse.read_states(self.folder)))
            self._forget()
        stood = self._standing
        self._write_job(stood.suspicion if stood else None, code, stood.ranks if stood else None)
        report = self.diagnose(self.folder, ended=True)
        self._conclude(report, "failure" if code else "end")

    def _conclude(self, report: ShownReport, kind: str) -> None:
        before, self.verdict, self.kind = self.kind, report, kind
        if kind != "end" and before != "hang":  # since when there is a verdict
            self.files.mark(kind)
        self.told(self)

    def _end(self) -> None:
        """Ends the hanging job: SIGTERM to the launcher, which ends its ranks; then SIGKILL to all that are left."""
        child = self._child
        if child is None:
            return
        self._killed = True
        below = _below(child.pid)
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_PATIENCE_AT_END)
        for pid, started in below.items():
            with contextlib.suppress(OSError):
                if abs(pulse.process(pid).started - started) < _CLOCK_S:
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_PATIENCE_AT_END)
        if child.poll() is None:
            child.kill()


class CannotStartError(ParamedicError):
    """The command itself; its code is the shell's."""

    def __init__(self, name: str, error: OSError) -> None:
        super().__init__(f"{name}: cannot be started: {error.strerror or error}")
        self.code = 127 if isinstance(error, FileNotFoundError) else 126


def environment(folder: str, record: Mapping[str, object] | None = None) -> dict[str, str]:
    """The user's own, with our folder first on PYTHONPATH."""
    before = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        **({} if record is None else {"PARAMEDIC_RECORD": json.dumps(record)}),
        "PYTHONPATH": os.pathsep.join([AGENT, *([before] if before else [])]),
        "PARAMEDIC_WATCH": os.path.abspath(folder),
        "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1"),
    }


def _marks(states: Mapping[int, Mapping[str, Any]]) -> Marks:
    """How far each rank has come."""
    return {rank: (_count(one, "pid"), _count(one, "ticks"), _count(one, "steps")) for rank, one in states.items()}


def _count(state: Mapping[str, Any], name: str) -> int:
    value = state.get(name)
    return int(value) if isinstance(value, (int, float)) else 0


def _again(before: Marks, now: Marks) -> bool:
    return any(rank in before and before[rank][0] != one[0] for rank, one in now.items())


def _signal_for_stack(one: Pulse) -> None:
    """Only where the agent's handler is in place, and the process is still the one that installed it."""
    number, pid = one.state.get("signal"), one.state.get("pid")
    if not isinstance(number, int) or not isinstance(pid, int) or one.process is None:
        return
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            caught = next((int(line.split()[1], 16) for line in file if line.startswith("SigCgt")), 0)
        if caught >> (number - 1) & 1 and abs(pulse.process(pid).started - one.process.started) < _CLOCK_S:
            os.kill(pid, number)
            time.sleep(_POLL)  # it writes without being asked twice; nothing tells when
    except (OSError, ValueError):
        return


def _await_end(pid: int) -> None:
    """The keeper ends when nobody can write to it any more; a daemon that the job left behind is not waited for."""
    until = time.monotonic() + 2
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < until:
            time.sleep(0.02)


def _below(pid: int) -> dict[int, float]:
    """All that it has started, each with its time of start: a number alone may be somebody else's when it is used."""
    found = processes()
    return {one: found[one].started for one in tree_of(pid, found) if one != pid and one in found}

"""The agent in a rank: hooks on the main thread count and time, a background thread writes the state twice a second."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections import deque
from typing import Any

from . import reports
from .box import Box
from .sockets import Connections

VERSION = 1
PERIOD = 0.5
_STEPS = 48  # whose times are kept
_POINTS = 48  # at which memory is looked at, in equal distances that double when they are too many
_KEPT_NOTES = 32
_CORES = 64
_SOCKETS_EVERY, _DEVICE_EVERY = 5.0, 2.0
PARTS = ("data", "backward", "collective", "optimizer", "checkpoint", "other")


class Agent:
    """All that is known about this rank. Only the main thread's hooks change the clock of phases."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.rank: int | None = None
        self.size: int | None = None
        self.stage = "starting"
        self.steps = 0
        self.ticks = 0
        """Grows with whatever shows that the program goes on: batches, collectives, steps."""
        self.ticked = time.monotonic()
        self.longest = 0.0
        self.groups: dict[str, dict[str, Any]] = {}
        self.notes: deque[dict[str, Any]] = deque(maxlen=_KEPT_NOTES)
        self.off: dict[str, str] = {}
        self.values: dict[str, Any] = {}
        self.digests: deque[dict[str, Any]] = deque(maxlen=16)
        self.conduct: dict[str, Any] = {}
        self.box: Box | None = None
        self.clock = Clock()
        self.memory = Memory()
        self.paused = False
        """For whoever measures what watching costs: hooks return at once, and nothing is written."""
        self._alive = True
        self._asked = 0
        self._traced_at = -1
        """How far it had come when its flight recorder was last written because somebody asked."""
        self._beats = 0
        self._cores = len(_cores())
        """On which it might have run before the program chose among them."""
        self._connections: list[dict[str, int]] = []
        self._sockets = Connections()
        self._next: dict[str, float] = {}
        self._thread: threading.Thread | None = None
        self._writing = threading.Lock()

    # -- life ----------------------------------------------------------------------------------------------------

    def begin(self, rank: int, size: int | None) -> None:
        if self.rank is not None or not self._alive:
            return
        self.rank, self.size = rank, size
        for name in ("ranks", "stacks", "traces"):
            os.makedirs(os.path.join(self.folder, name), exist_ok=True)
        self.guarded("twins", self._look_for_twin)
        self.guarded("box", self._open_box)
        self.guarded("stacks by signal", self._register)
        _quiet_about_forks()
        atexit.register(self._end)
        self.write()
        self._thread = threading.Thread(target=self._beat, name="paramedic", daemon=True)
        self._thread.start()

    def _look_for_twin(self) -> None:
        """Another process that goes on under the same number: their files would overwrite each other's."""
        with contextlib.suppress(OSError, ValueError):
            with open(self.path("ranks", f"rank-{self.rank}.watch.json"), "rb") as file:
                before = json.load(file)
            if before.get("pid") != os.getpid() and before.get("stage") not in ("ended", "failed"):
                os.kill(int(before["pid"]), 0)
                self.note("twin", pid=before["pid"])

    def _end(self) -> None:
        if self.is_watching:
            self.guarded("twins", self._look_for_twin)
            self.stage = "ended" if self.stage != "failed" else "failed"
            self.write()

    def rename(self, rank: int, size: int) -> None:
        """The program has met the others under another number than its environment said."""
        old = self.rank
        self.rank, self.size = rank, size
        for name in ("rank-{}.watch.json", "rank-{}.box"):
            with contextlib.suppress(OSError):
                os.replace(self.path("ranks", name.format(old)), self.path("ranks", name.format(rank)))
        self.write()

    def forget(self) -> None:
        """In a forked child: it is not the rank."""
        self._alive = False
        self.box = None
        self._writing = threading.Lock()

    @property
    def is_watching(self) -> bool:
        return self._alive and self.rank is not None and not self.paused

    def guarded(self, what: str, work: Any, *arguments: Any) -> Any:
        """Runs a piece of watching; if it fails it is switched off for good, and the report says why."""
        if what in self.off or not self._alive:
            return None
        try:
            return work(*arguments)
        except Exception as error:
            self.off[what] = f"{type(error).__name__}: {str(error)[:160]}"
            return None

    def path(self, folder: str, name: str) -> str:
        return os.path.join(self.folder, folder, name)

    # -- what hooks tell -----------------------------------------------------------------------------------------

    def tick(self) -> None:
        now = time.monotonic()
        gap = now - self.ticked
        if gap > self.longest and self.steps:
            self.longest = gap
        self.ticked = now
        self.ticks += 1

    def note(self, kind: str, **said: Any) -> None:
        self.notes.append(dict(said, kind=kind, step=self.steps, at=time.time()))

    def stepped(self) -> None:
        self.tick()
        self.steps += 1
        self.stage = "training"
        self.clock.step()
        self.guarded("memory", self.memory.step, self.steps)

    def entered(self, stage: str) -> None:
        self.stage = stage
        self.tick()

    # -- the background thread -----------------------------------------------------------------------------------

    def _beat(self) -> None:
        while self._alive:
            time.sleep(PERIOD)
            if self.paused:
                continue
            self._beats += 1
            self.guarded("answers", self._answer)
            still = time.monotonic() - self.ticked > 1.0  # then the watcher wants to know whether data still flows
            if still or self._due("connections", _SOCKETS_EVERY):
                self.guarded("connections", self._read_connections)
            if self._due("device memory", _DEVICE_EVERY):
                self.guarded("device memory", self._read_device)
            self.write()

    def _due(self, what: str, every: float) -> bool:
        now = time.monotonic()
        if now < self._next.get(what, 0.0):
            return False
        self._next[what] = now + every
        return True

    def _answer(self) -> None:
        """The watcher asks by a number in a file: then stacks and the flight recorder are written."""
        try:
            with open(os.path.join(self.folder, "ask"), "rb") as file:
                asked = int(file.read(16) or 0)
        except (OSError, ValueError):
            return
        if asked > self._asked:
            self._asked = asked
            self.guarded("stacks", reports.write_stacks, self.path("stacks", f"rank-{self.rank}.txt"), asked)
            self.write()
            self._traced_at = self.ticks
            self.guarded("flight recorder", self.write_trace)

    def write_last_trace(self) -> None:
        """At the end; not over what it has said of the very place: with gloo a call that timed out looks finished."""
        if self.ticks != self._traced_at:
            self.write_trace()

    def write_trace(self) -> None:
        data = reports.flight_recorder()
        if data:
            reports.replace_file(self.path("traces", f"rank_{self.rank}"), data)

    def _read_connections(self) -> None:
        self._connections = self._sockets.read()

    def _read_device(self) -> None:
        torch = sys.modules.get("torch")
        cuda = getattr(torch, "cuda", None)  # None, too, while torch is still being imported
        if torch is None or cuda is None or not hasattr(cuda, "memory_allocated") or not cuda.is_initialized():
            return
        device = torch.cuda.current_device()
        self.values["device_memory"] = [torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)]
        properties = torch.cuda.get_device_properties(device)
        self.values["device_total"] = properties.total_memory
        self.values["device"] = f"GPU-{getattr(properties, 'uuid', '')}"

    def write(self) -> None:
        """The whole state, under a name of its own and moved into place. A full disk only loses this one."""
        if not self.is_watching:
            return
        with self._writing:
            self.guarded("state", self._write)
            if self.off.get("state", "").startswith(("OSError", "FileNotFoundError", "PermissionError")):
                del self.off["state"]  # there may be room again

    def _write(self) -> None:
        data = json.dumps(self.state()).encode("utf-8", "replace")
        reports.replace_file(self.path("ranks", f"rank-{self.rank}.watch.json"), data)

    def state(self) -> dict[str, Any]:
        now = time.monotonic()
        return {
            "paramedic_watch": VERSION,
            "rank": self.rank,
            "world_size": self.size,
            "local_rank": _number(os.environ.get("LOCAL_RANK")),
            "attempt": _number(os.environ.get("TORCHELASTIC_RESTART_COUNT")) or 0,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "signal": self.values.get("signal"),
            "at": time.time(),
            "beats": self._beats,
            "answered": self._asked,
            "stage": self.stage,
            "steps": self.steps,
            "ticks": self.ticks,
            "idle_s": round(now - self.ticked, 3),
            "longest_idle_s": round(self.longest, 3),
            "now": self.clock.now(now),
            "parts": list(PARTS),
            "times_ms": self.clock.times(),
            "worked_ms": self.clock.worked(),
            "memory": list(self.memory.points),
            "calls": self.box.count if self.box else 0,
            "groups": list(self.groups.values()),
            "host_memory": _resident(),
            "cpu_s": round(time.process_time(), 2),
            "cores": {"own": _cores()[:_CORES], "of": self._cores},
            "connections": self._connections,
            "digests": list(self.digests),
            "values": self.values,
            "conduct": self.conduct,
            "notes": list(self.notes),
            "off": self.off,
            "versions": _versions(),
        }

    def _open_box(self) -> None:
        self.box = Box(self.path("ranks", f"rank-{self.rank}.box"))

    def _register(self) -> None:
        """A stack even while somebody holds Python's lock: faulthandler's own handler needs no interpreter."""
        import faulthandler
        import signal

        number = signal.SIGRTMAX - 3
        if signal.getsignal(number) is not signal.SIG_DFL:
            return
        self._stack_file = open(self.path("stacks", f"rank-{self.rank}.signal.txt"), "ab")  # noqa: SIM115
        faulthandler.register(number, file=self._stack_file, all_threads=True, chain=False)
        self.values["signal"] = int(number)


def _cores() -> list[int]:
    """On which this process may run; nothing where nobody tells."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


class Beside:
    """What the program's own threads compute beside the training: nobody waits for it. torch's threads do not count
    among them. Of a thread that ends, what it did since the last look is not known."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._known: dict[int, float] = {}

    def total(self) -> float:
        if threading.active_count() > 1:
            me, main = threading.get_ident(), threading.main_thread().ident
            now = {
                ident: _computed(ident)
                for one in threading.enumerate()
                if (ident := one.ident) and ident not in (me, main) and not isinstance(one, threading._DummyThread)
            }
            self._sum += sum(max(0.0, spent - self._known.get(ident, 0.0)) for ident, spent in now.items())
            self._known = now
        return self._sum


def _computed(thread: int) -> float:
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread))
    except (OSError, AttributeError, OverflowError):  # it has ended meanwhile, or no such clock
        return 0.0


class Clock:
    """Which phase the main thread is in, and how long each one took lately. Inner ones count for themselves."""

    def __init__(self) -> None:
        self._stack: list[list[Any]] = []
        self._sums = dict.fromkeys(PARTS, 0.0)
        self._last: float | None = None
        self._times: deque[list[float]] = deque(maxlen=_STEPS)
        self._worked: deque[float] = deque(maxlen=_STEPS)
        self._began: tuple[float, float] | None = None
        self._processor = 0.0
        self._beside = Beside()

    def enter(self, phase: str, said: str = "") -> None:
        self._stack.append([phase, said, time.monotonic(), 0.0])

    def leave(self) -> None:
        if not self._stack:
            return
        phase, _, since, inner = self._stack.pop()
        took = time.monotonic() - since
        self._sums[phase] = self._sums.get(phase, 0.0) + took - inner
        if self._stack:
            self._stack[-1][3] += took

    def step(self) -> None:
        now, processor = time.monotonic(), time.process_time() - self._beside.total()
        if self._last is None:
            self._began = now, processor
        else:
            total = now - self._last
            self._sums["other"] = max(0.0, total - sum(self._sums[part] for part in PARTS if part != "other"))
            self._times.append([round(total * 1e3, 2), *(round(self._sums[part] * 1e3, 2) for part in PARTS)])
            self._worked.append(round((processor - self._processor) * 1e3, 2))
        self._sums = dict.fromkeys(PARTS, 0.0)
        self._last, self._processor = now, processor

    def now(self, at: float) -> dict[str, Any]:
        """The innermost phase, as another thread sees it."""
        for phase, said, since, _ in reversed(list(self._stack)):
            return {"phase": phase, "said": said, "for_s": round(at - since, 3)}
        return {"phase": "other", "said": "", "for_s": round(at - self._last, 3) if self._last else None}

    def times(self) -> list[list[float]]:
        return list(self._times)

    def worked(self) -> dict[str, Any]:
        """The processor's time of this process: since its first step, how long that is ago, and for the last steps."""
        if self._began is None or self._last is None:
            return {}
        since, before = self._began
        return {
            "total": round((self._processor - before) * 1e3, 1),
            "of": round((self._last - since) * 1e3, 1),
            "steps": list(self._worked),
        }


class Memory:
    """What this process alone holds after a step, on the host and on its device: bytes, at steps in equal distances."""

    def __init__(self) -> None:
        self.points: list[list[int]] = []
        self._every = 1

    def step(self, step: int) -> None:
        if step % self._every:
            return
        self.points.append([step, _own() or 0, _allocated()])
        if len(self.points) > _POINTS:
            self._every *= 2
            self.points = [point for point in self.points if point[0] % self._every == 0]


def _allocated() -> int:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return int(cuda.memory_allocated()) if cuda is not None and cuda.is_initialized() else 0


def _resident() -> int | None:
    pages = _pages()
    return pages[0] if pages else None


def _own() -> int | None:
    """Without the files and the memory that it shares with others."""
    pages = _pages()
    return pages[0] - pages[1] if pages else None


def _pages() -> tuple[int, int] | None:
    """What is in memory of this process, and what of that it shares: bytes."""
    try:
        with open("/proc/self/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    size = os.sysconf("SC_PAGE_SIZE")
    return resident * size, shared * size


def _versions() -> dict[str, str]:
    """Of what the program itself has imported."""
    names = ("torch", "deepspeed", "accelerate", "transformers", "lightning", "megatron.core", "colossalai",
             "horovod", "byteps", "mpi4py")  # fmt: skip
    found = {name: str(getattr(sys.modules.get(name), "__version__", "") or "") for name in names}
    return dict({name: text[:40] for name, text in found.items() if text}, python=sys.version.split()[0])


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) < 9 else None


def _quiet_about_forks() -> None:
    """Python 3.12 warns when a process with threads forks; that there is one more now is not the program's doing."""
    if sys.version_info >= (3, 12):
        import warnings

        warnings.filterwarnings("ignore", message=r".*multi-threaded, use of fork\(\)", category=DeprecationWarning)

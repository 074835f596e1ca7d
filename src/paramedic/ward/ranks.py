"""A few ranks on this machine, watched: started, waited for, asked where they are when they hang, ended whole.

Each rank leads a process group of its own, so that its data workers end with it. What a rank has to say it appends to
a file, one JSON document a line; what it prints goes to files that `paramedic diagnose` reads.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DUMP_SIGNAL = int(getattr(signal, "SIGRTMIN", signal.SIGUSR2)) + (11 if hasattr(signal, "SIGRTMIN") else 0)
"""Programs use SIGUSR1 and SIGUSR2 themselves."""
STARTUP_S = 120.0
GRACE_S = 5.0
LEAVE_S = 1.0
PROBE_S = 3.0
POLL_S = 0.02
_DUMP_S = 3.0


@dataclass(slots=True)
class Rank:
    number: int
    process: subprocess.Popen[bytes]
    logs: Path
    state: Path
    """Its files here: `N.jsonl`, what it tells; `N.stacks`, where it is when asked."""
    told: list[dict[str, Any]] = field(default_factory=list)
    exitcode: int | None = None
    ended_at: float = 0.0
    stopped: bool = False
    """We ended it: that is no failure of its own."""
    _read: int = 0

    def refresh(self) -> None:
        self._reap()
        with contextlib.suppress(OSError), open(self._file("jsonl"), "rb") as file:
            file.seek(self._read)
            lines = file.read()
            lines = lines[: lines.rfind(b"\n") + 1]
            self._read += len(lines)
            self.told += [json.loads(line) for line in lines.splitlines()]

    def _reap(self) -> None:
        """Its process group ends with it, and as long as it is not reaped the group's number is nobody else's."""
        if self.exitcode is None and _has_ended(self.process):
            self.ended_at = time.time()
            self._signal_group()
            self.exitcode = self.process.wait()

    def _signal_group(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # a zombie's group: PermissionError on macOS
            os.killpg(self.process.pid, number)

    def _file(self, kind: str) -> Path:
        return self.state / f"{self.number}.{kind}"

    @property
    def dump(self) -> str:
        try:
            return self._file("stacks").read_text("utf-8", "replace")
        except OSError:
            return ""

    def place(self, base: Path) -> Place | None:
        return place_of(self.dump, base)

    def has_told(self, event: str) -> bool:
        return any(one["event"] == event for one in self.told)

    @property
    def reports(self) -> list[dict[str, Any]]:
        return [one for one in self.told if one["event"] == "report"]

    @property
    def injected(self) -> dict[str, str]:
        return {one["fault"]: one["what"] for one in self.told if one["event"] == "injected"}

    @property
    def is_running(self) -> bool:
        return self.exitcode is None

    @property
    def died(self) -> bool:
        """It ended, not by us, and not as pytest ends a test that it has reported."""
        if self.exitcode is None or self.stopped:
            return False
        return not self.has_told("finished") or self.exitcode not in (0, 1)

    @property
    def was_sacrificed(self) -> bool:
        return self.died and self.exitcode == -signal.SIGKILL and "kill-rank" in self.injected

    @property
    def failed_at(self) -> float | None:
        """When it failed by itself; a test that was expected to fail has failed, too."""
        times = [one["time"] for one in self.reports if one["outcome"] in ("failed", "xfailed")]
        if self.died:
            times.append(self.ended_at - 0.25)  # seen late, and what its peers say follows from it
        return min(times, default=None)

    @property
    def ending(self) -> str:
        if self.exitcode is not None and self.exitcode < 0:
            known = {one.value: one.name for one in signal.Signals}
            return f"killed by {known.get(-self.exitcode, f'signal {-self.exitcode}')}"
        return f"exited with code {self.exitcode}"


def start(
    commands: Sequence[Sequence[str]],
    environment: Mapping[str, str],
    folder: Path,
    cwd: Path,
    *,
    port: int,
    go: int,
) -> list[Rank]:
    """One process for each command; `go` is the pipe's end that tells them that all have finished."""
    ranks: list[Rank] = []
    try:
        for number, command in enumerate(commands):
            logs = folder / "logs" / f"rank-{number}"
            logs.mkdir(parents=True)
            with open(logs / "stdout.log", "wb") as out, open(logs / "stderr.log", "wb") as err:
                process = subprocess.Popen(
                    command,
                    cwd=cwd,
                    env={**environment, **_variables(number, len(commands), port)},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                    pass_fds=[go],
                )
            ranks.append(Rank(number, process, logs, folder / "state"))
    except BaseException:
        stop(ranks)
        raise
    return ranks


def _variables(rank: int, size: int, port: int) -> dict[str, str]:
    """As torchrun sets them."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def reserve_port() -> socket.socket:
    """As long as this socket is open nobody else is given its port, but rank 0's store may listen on it."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder


@dataclass(slots=True)
class _Watch:
    """Time, as far as it decides anything."""

    ranks: Sequence[Rank]
    timeout: float
    started: float = field(default_factory=time.monotonic)
    began: float | None = None
    """Since when all of them run the test."""
    failed: float | None = None
    over: float | None = None
    """Since when nobody has anything more to tell."""
    probed: float | None = None
    places: list[Place | None] = field(default_factory=list)

    def look(self) -> float | None:
        """What happened since; seconds of a hang, 0 at the end, None to go on."""
        ranks, now = self.ranks, time.monotonic()
        for rank in ranks:
            rank.refresh()
        running = [rank for rank in ranks if rank.is_running]
        if self.began is None and all(rank.has_told("ready") for rank in running):
            self.began = now
        if self.failed is None and any(rank.failed_at and not rank.was_sacrificed for rank in ranks):
            self.failed = now
        if self.over is None and all(rank.has_told("finished") for rank in running):
            self.over = now
        if not running or (self.failed and (_past(self.failed, GRACE_S, now) or _past(self.over, LEAVE_S, now))):
            return 0
        if now > (self.started + max(STARTUP_S, self.timeout) if self.began is None else self.began + self.timeout):
            return now - (self.began or self.started)
        if self.failed is None and self._is_waiting_for_the_finished(running, now):
            return now - (self.began or self.started)
        return None

    def _is_waiting_for_the_finished(self, running: Sequence[Rank], now: float) -> bool:
        """Some have finished, and twice the others are found at the same lines, all waiting for ranks."""
        unfinished = [rank for rank in running if not rank.has_told("done")]
        if len(unfinished) == len(self.ranks) or not unfinished:
            return False
        if self.probed is None:
            self.probed = now
        if not _past(self.probed, PROBE_S, now):
            return False
        last, self.probed = self.places, now
        dump_stacks(unfinished)
        self.places = [rank.place(Path()) for rank in unfinished]
        return self.places == last and all(place and place.waits for place in last)


def _past(since: float | None, seconds: float, now: float) -> bool:
    return since is not None and now > since + seconds


def watch(ranks: Sequence[Rank], timeout: float, go: int) -> float | None:
    """Until all have ended, or hang: then for how many seconds. After a failure the others have a short grace.

    Who has passed waits until `go` is closed. A rank that `kill-rank` has killed is no reason to hurry: the test is
    about what the others do then.
    """
    watched = _Watch(ranks, timeout)
    open_end: int | None = go
    try:
        while (result := watched.look()) is None:
            if open_end is not None and all(
                not rank.is_running or rank.has_told("done") or rank.failed_at for rank in ranks
            ):
                os.close(open_end)
                open_end = None
            time.sleep(POLL_S)
    finally:
        if open_end is not None:
            os.close(open_end)
    return result or None


def stop(ranks: Iterable[Rank]) -> None:
    """All at once, so that nobody can still write that it has lost a peer."""
    running = [rank for rank in ranks if rank.exitcode is None]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for rank in running:
            rank._signal_group(number)
    for rank in running:
        rank.stopped = True
        rank.exitcode = rank.process.wait()
        rank.ended_at = time.time()
        rank.refresh()


def dump_stacks(ranks: Iterable[Rank]) -> None:
    """Ask all that still run where they are; faulthandler answers although the interpreter is blocked."""
    asked = [rank for rank in ranks if rank.is_running and rank._file("stacks").exists()]
    for rank in asked:
        os.truncate(rank._file("stacks"), 0)
        os.kill(rank.process.pid, DUMP_SIGNAL)
    sizes: list[int] = []
    until = time.monotonic() + _DUMP_S
    while time.monotonic() < until:
        time.sleep(0.1)
        before, sizes = sizes, [rank._file("stacks").stat().st_size for rank in asked]
        if sizes == before and all(sizes):
            return


def exit_table(ranks: Iterable[Rank]) -> str:
    """How ranks died, as torchrun writes it on its console: nobody else has seen it."""
    died = sorted((rank for rank in ranks if rank.died), key=lambda rank: rank.ended_at)
    rows = []
    for number, rank in enumerate(died):
        stamp = time.strftime("%Y-%m-%d_%H:%M:%S", time.localtime(rank.ended_at))
        rows.append(
            f"[{number}]:\n  time      : {stamp}\n  rank      : {rank.number} (local_rank: {rank.number})\n"
            f"  exitcode  : {rank.exitcode} (pid: {rank.process.pid})\n"
            f"  error_file: <N/A>\n  traceback : {rank.ending}\n"
        )
    line, rule = "-" * 60, "=" * 60
    others = "".join(rows[1:]) or "  <NO_OTHER_FAILURES>\n"
    table = f"{rule}\npytest FAILED\n{line}\nFailures:\n{others}{line}\n"
    return f"{table}Root Cause (first observed failure):\n{rows[0]}{rule}\n" if rows else ""


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return process.poll() is not None  # macOS before Python 3.13


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank's main thread is: the user's own line, and what it has called there."""

    function: str
    own: str
    waits: str
    """The symptom, if it waits for other ranks."""

    def __str__(self) -> str:
        where = f"{self.function} ({self.own})" if self.own else self.function
        return f"{'wait' if self.waits else 'be'} in {where}"


_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|^<")
_OURS = str(Path(__file__).parent.parent) + os.sep
_STANDARD = tuple(os.path.join(path, "") for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_LAUNCHER = re.compile(r'^  File "(?:.*/(?:_pytest|pluggy|pytest)/|<frozen runpy>)')
_ANONYMOUS = ("wrapper", "inner", "decorate_context", "_call_impl", "_wrapped_call_impl", "__call__")
_WAITING = re.compile(r"/torch/(?:distributed|nn/parallel)/|/torch/autograd/graph\.py$")
"""Where Python is while C++ waits for other ranks; DDP reduces inside of the backward pass."""
_RENDEZVOUS = re.compile(r"init_process_group|rendezvous|_store_based_barrier|_create_c10d_store")


def place_of(dump: str, base: Path) -> Place | None:
    """From faulthandler's text, innermost frame first."""
    frames = main_thread(dump)
    if not frames:
        return None
    own = next((n for n, (file, _, _) in enumerate(frames) if not _is_library(file)), None)
    inner = frames[: len(frames) if own is None else own]
    torch = [function for file, _, function in inner if "/torch/" in file]
    waits = ""
    if inner and _WAITING.search(inner[0][0]):  # in the innermost frame: torch also imports and computes
        waits = "rendezvous-setup-hang" if any(map(_RENDEZVOUS.search, torch)) else "collective-hang"
    called = [name for file, _, name in reversed(inner) if name not in _ANONYMOUS and not file.startswith(_OURS)]
    if own is None:
        named = next((function for function in reversed(torch) if _RENDEZVOUS.search(function)), None)
        return Place(named or frames[0][2], "", waits)
    file, line, function = frames[own]
    return Place(called[0] if called else function, f"{_relative(file, base)}:{line}", waits)


def main_thread(dump: str) -> list[tuple[str, int, str]]:
    """The thread that took the signal, which is the main one; without pytest's own frames below the test."""
    threads = re.split(r"^(?=(?:Current thread|Thread) 0x)", dump, flags=re.M)
    current = [text for text in threads if text.startswith("Current thread")] or threads[-1:]
    found = [_FRAME.match(line) for line in current[0].splitlines()] if current else []
    return [(one[1], int(one[2]), one[3]) for one in found if one]


def without_launcher(dump: str) -> str:
    """For people: the frames of pytest, pluggy and runpy, from which every test is called, say nothing."""
    return "".join(line for line in dump.splitlines(keepends=True) if not _LAUNCHER.search(line))


def _is_library(file: str) -> bool:
    return bool(_LIBRARY.search(file)) or file.startswith((_OURS, *_STANDARD))


def _relative(file: str, base: Path) -> str:
    try:
        return str(Path(file).relative_to(base))
    except ValueError:
        return file

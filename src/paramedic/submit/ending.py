"""Ends processes: all of an attempt, whoever their parent is now, and nothing else."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable

from paramedic.submit.spec import MARK
from paramedic.watch.process import look, processes, tree_of

_SUBREAPER, _DEATH_SIGNAL = 36, 1
_POLL = 0.05


def marked(mark: str) -> set[int]:
    """Processes that were started for this attempt (`JOB/NUMBER`), and all below them."""
    wanted = f"{MARK}={mark}".encode()
    found = processes()
    roots = [pid for pid in found if pid != os.getpid() and wanted in _environment(pid)]
    tree = {one for pid in roots for one in tree_of(pid, found)}
    return {pid for pid in tree if pid in found and found[pid].state not in "ZX" and pid != os.getpid()}


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read(1 << 20).split(b"\0")
    except OSError:
        return []


def end(find: Callable[[], Iterable[int]], patience: float) -> bool:
    """SIGTERM was sent before, or is not wanted: waits so long, then SIGKILL, until nothing is found any more."""
    until = time.monotonic() + patience
    while time.monotonic() < until and find():
        time.sleep(_POLL)
    until = time.monotonic() + 10
    while left := list(find()):
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:  # one that the kernel does not let go, on a dead disk for instance
            return False
        time.sleep(_POLL)
        _reap(left)
    return True


def _reap(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)


def is_alive(pid: int, started: float) -> bool:
    """This very process, not another one that got its number later."""
    if pid <= 0:
        return False
    with contextlib.suppress(OSError):
        os.waitpid(pid, os.WNOHANG)
    one = look(pid)
    return one is not None and one.state not in "ZX" and abs(one.started - started) < 2


def adopt_orphans() -> None:
    """Whatever loses its parent below this process becomes its child."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0)


def descendants() -> set[int]:
    found = processes()
    return {pid for pid in tree_of(os.getpid(), found) if pid != os.getpid() and found[pid].state not in "ZX"}

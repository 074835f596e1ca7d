"""The keeper: a process of its own between the job's output and the terminal. It outlives a watcher that is killed or
stopped, and a full disk only costs it the copy: the job never waits for us and never writes into a closed pipe."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from dataclasses import dataclass

_MOST = 4 << 30
_FOREVER = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGPIPE,
    signal.SIGTSTP,
    signal.SIGTTOU,
)


@dataclass(frozen=True, slots=True)
class Keeper:
    """The ends into which the job writes, and the process that reads them."""

    pid: int
    out: int
    err: int

    def close(self) -> None:
        os.close(self.out)
        os.close(self.err)


def start(log: str, quiet_while_watched: bool) -> Keeper:
    """`quiet_while_watched`: the watcher shows the output itself (above its live view) for as long as it lives."""
    from_out, out = os.pipe()
    from_err, err = os.pipe()
    watcher = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(out)
            os.close(err)
            _keep({from_out: 1, from_err: 2}, log, watcher if quiet_while_watched else None)
        finally:
            os._exit(0)
    os.close(from_out)
    os.close(from_err)
    return Keeper(pid, out, err)


def _keep(streams: dict[int, int], log: str, watcher: int | None) -> None:
    os.setsid()
    for number in _FOREVER:
        signal.signal(number, signal.SIG_IGN)
    copy = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    copied = 0
    while streams:
        for stream in select.select(list(streams), [], [])[0]:
            data = os.read(stream, 1 << 16)
            if not data:
                del streams[stream]
                continue
            if watcher is None or os.getppid() != watcher:
                _write(streams[stream], data)
            if copied < _MOST:
                copied += len(data)
                _write(copy, data)


def _write(descriptor: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # a full disk, a terminal that is gone
        while data:
            data = data[os.write(descriptor, data) :]

"""Large plain files are read ahead by several processes. What comes out does not depend on how many there are."""

from __future__ import annotations

import gc
import marshal
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from paramedic.collect.archives import is_log
from paramedic.collect.layouts import Place
from paramedic.collect.logs import LogRead
from paramedic.garbage import no_collections
from paramedic.model import Event, Fact, Skipped, Source, event_of

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

WORTH_IT = 64 << 20
"""So many bytes must wait to be read before processes are started for them."""
_SMALL = 64 << 10  # such a file is read sooner than it is handed over
_MOST = 8


@dataclass(frozen=True, slots=True)
class Read:
    place: Place
    log: LogRead


ReadFile = Callable[[str], Read | None]
Take = Callable[[str], Read | None]


@contextmanager
def read_ahead(paths: Sequence[str], read: ReadFile) -> Iterator[Take]:
    """Gives a function that has what `read` says of a file, or None: then it is to be read by whoever asks."""
    files = list(_large_files(paths)) if _may_fork() else []
    count = min(len(files), len(os.sched_getaffinity(0)), _MOST) if files else 0
    if count < 2 or sum(size for _, size in files) < WORTH_IT:
        yield lambda path: None
        return
    with closing(_Pool([path for path, _ in files], count, read)) as pool, no_collections():
        yield pool.take


def _may_fork() -> bool:
    """Not a process that has threads, nor one that may have no children."""
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    from multiprocessing import current_process

    return not current_process().daemon


def _large_files(paths: Iterable[str]) -> Iterator[tuple[str, int]]:
    """In the order in which they will be opened. It need not be exact: what is missing is merely not read ahead."""
    for path in paths:
        for file in _below(path) if os.path.isdir(path) else (path,):
            try:
                about = os.stat(file)
            except (OSError, ValueError):
                continue
            if stat.S_ISREG(about.st_mode) and about.st_size >= _SMALL and not _is_pickle(file):
                yield file, about.st_size


def _is_pickle(file: str) -> bool:
    """Reading dumps is mostly making objects: two processes beside each other take more of the processor for it."""
    try:
        with open(file, "rb", buffering=0) as raw:
            return raw.read(1) == b"\x80"
    except OSError:
        return False


def _below(folder: str) -> Iterator[str]:
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if is_log(name):
                yield os.path.join(root, name).removeprefix("./")


class _Pool:
    """Each process reads every n-th file and waits while nobody takes what it has read: memory stays bounded."""

    def __init__(self, paths: Sequence[str], count: int, read: ReadFile) -> None:
        from multiprocessing import get_context

        fork = get_context("fork")
        self._count = count
        self._number = {path: number for number, path in enumerate(paths)}
        self._next = list(range(count))
        self._processes = []
        self._pipes: list[Connection] = []
        gc.freeze()  # what there is by now stays, so that no collection copies it into every process
        for first in range(count):
            ours, theirs = fork.Pipe(duplex=False)
            process = fork.Process(target=_work, args=(paths[first::count], read, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        gc.unfreeze()

    def take(self, path: str) -> Read | None:
        number = self._number.get(path, -1)
        whose = number % self._count
        try:
            while 0 <= self._next[whose] <= number:
                data = self._pipes[whose].recv_bytes()
                here, self._next[whose] = self._next[whose], self._next[whose] + self._count
                if here == number:
                    return _unpacked(marshal.loads(data)) if data else None
        except (EOFError, OSError):  # the process is gone: whoever asks reads the file himself, and sees why
            self._next[whose] = -1
        return None

    def close(self) -> None:
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.kill()
            process.join()
            process.close()
            pipe.close()


def _work(paths: Sequence[str], read: ReadFile, out: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asked is interrupted, and ends us
    gc.disable()
    try:
        for path in paths:
            found = read(path)
            out.send_bytes(marshal.dumps(_packed(found)) if found else b"")
    finally:
        os._exit(0)  # nothing is said from here: what is missing the parent reads, and fails itself if it must


_NO_FIELDS: dict[str, Any] = {}
"""One for all events without any: of a large log they are most."""
_OF_EVENT = attrgetter(*Event.__dataclass_fields__)


def _packed(one: Read) -> tuple[Any, ...]:
    log = one.log
    return (
        astuple(one.place),
        astuple(log.source),
        [_OF_EVENT(event) for event in log.events],
        [astuple(left) for left in log.skipped],
        [astuple(fact) for fact in log.facts],
        log.rank_is_sure,
        log.stated_rank,
        log.processes,
    )


def _unpacked(item: tuple[Any, ...]) -> Read:
    place, source, events, skipped, facts, sure, stated, processes = item
    return Read(
        Place(*place),
        LogRead(
            Source(*source),
            [event_of(event if event[-1] else (*event[:-1], _NO_FIELDS)) for event in events],
            [Skipped(*left) for left in skipped],
            [Fact(*fact) for fact in facts],
            sure,
            stated,
            processes,
        ),
    )

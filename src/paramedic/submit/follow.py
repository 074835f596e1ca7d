"""What ranks print, line by line, while it is printed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from paramedic.errors import ParamedicError
from paramedic.submit import rank_logs
from paramedic.submit.store import ENDED

if TYPE_CHECKING:
    from paramedic.submit.job import Job

_POLL = 0.2
_BLOCK = 1 << 20


class _Reader:
    """One rank's stream; a line comes out once it is whole."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb")  # noqa: SIM115 - it stays the same file when it is renamed
        self._rest = b""

    def read(self, last: bool) -> list[str]:
        found: list[bytes] = []
        while block := self._file.read(_BLOCK):
            *whole, self._rest = (self._rest + block).split(b"\n")
            found += whole
        if last and self._rest:
            found.append(self._rest)
            self._rest = b""
        return [line.decode("utf-8", "replace") for line in found]

    def close(self) -> None:
        self._file.close()


def lines(job: Job, rank: int | None, follow: bool, attempt: int) -> Iterator[str]:
    """Of one rank as they are; of all with the rank before them. Following goes on through later attempts."""
    if rank is not None and not 0 <= rank < job.spec.world_size:
        raise ParamedicError(f"rank {rank}: {job.id} has ranks 0 to {job.spec.world_size - 1}")
    made = len(job.attempts)
    if attempt > max(made, 1) or attempt < 0:
        raise ParamedicError(f"attempt {attempt}: {job.id} has had {made}")
    number = attempt or max(made, 1)
    while True:
        yield from _of_attempt(job, rank, follow, number)
        if not follow or attempt or (len(job.attempts) <= number and job.status in ENDED):
            return
        number += len(job.attempts) > number
        time.sleep(_POLL)


def _of_attempt(job: Job, rank: int | None, follow: bool, number: int) -> Iterator[str]:
    readers: dict[tuple[int, int], _Reader] = {}
    with contextlib.ExitStack() as stack:
        while True:
            over = not follow or _is_over(job, number)
            _open_new(readers, stack, job, rank, number)
            for (of, _), reader in sorted(readers.items()):
                for line in reader.read(last=over):
                    yield line if rank is not None else f"{of}: {line}"
            if over:
                return
            time.sleep(_POLL)


def _open_new(
    readers: dict[tuple[int, int], _Reader], stack: contextlib.ExitStack, job: Job, rank: int | None, number: int
) -> None:
    """By inode: a file that has been renamed meanwhile is not read twice."""
    for of, paths in rank_logs.files(job.folder(number), job.spec.ranks_per_node).items():
        if rank is not None and of != rank:
            continue
        for path in paths:
            with contextlib.suppress(OSError):
                key = (of, os.stat(path).st_ino)
                if key not in readers:
                    readers[key] = _Reader(path)
                    stack.callback(readers[key].close)


def _is_over(job: Job, number: int) -> bool:
    standing = job.standing
    ended = [one for one in standing.attempts if one.number == number and one.ended is not None]
    return bool(ended) or standing.phase in ENDED

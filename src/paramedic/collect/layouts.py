"""Which rank wrote it: from the file's path, and from the prefixes that launchers put before each line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file says it comes from. A torchrun folder is named after the local rank; a prefix may correct it."""

    rank: int | None = None
    attempt: int = 0


_PATHS = (
    re.compile(r"(?:^|/)attempt_(?P<attempt>\d+)/(?P<rank>\d+)/(?:stdout\.log|stderr\.log|error\.json)(?:\.gz|\.zst)?$"),
    re.compile(r"(?:^|[/._-])rank[._-]?(?P<rank>\d+)(?=[^/\d]|$)[^/]*$", re.I),
    re.compile(r"(?:^|/)(?:(?:task|proc|process|worker|log)[._-])?(?P<rank>\d{1,5})\.(?:log|out|err|txt|stdout|stderr)(?:\.gz|\.zst)?$"),
)


def place_of(path: str) -> Place:
    for pattern in _PATHS:
        if (found := pattern.search(path)) is not None:
            attempt = found.groupdict().get("attempt")
            return Place(int(found["rank"]), int(attempt) if attempt else 0)
    return Place()


_TORCH = re.compile(r"\[rank(\d{1,6})\]:[ \t]?")
_TEE = re.compile(r"\[(?:default|trainer|worker)(\d{1,5})\]:")
_MPIRUN = re.compile(r"\[\d+,(\d{1,6})\]<(?:stdout|stderr|stddiag)>:[ \t]?")
_SRUN = re.compile(r"[ \t]{0,6}(\d{1,6}): ?")
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


@dataclass(slots=True)
class Prefixes:
    """Peels rank prefixes off a line, layer by layer. `srun -l` is only recognised when the whole file has it."""

    srun: bool = False

    @classmethod
    def of(cls, sample: Sequence[str]) -> Prefixes:
        lines = [line for line in sample if line.strip()]
        labelled = [m.group(1) for line in lines if (m := _SRUN.match(line)) and line[m.end() - 1] == " "]
        return cls(srun=len(lines) >= 3 and len(labelled) >= 0.9 * len(lines) and len(set(labelled)) < 0.6 * len(lines))

    def peel(self, line: str) -> tuple[int | None, str, bool]:
        """(rank or None, the line without its prefixes, whether torch itself wrote `[rankN]:`)."""
        rank: int | None = None
        by_torch = False
        if self.srun and (found := _SRUN.match(line)):
            rank, line = int(found.group(1)), line[found.end() :]
        for pattern in (_MPIRUN, _TORCH, _TEE, _TORCH):
            if line.startswith("[") and (found := pattern.match(line)):
                rank, line = int(found.group(1)), line[found.end() :]
                by_torch = pattern is _TORCH
        return rank, line, by_torch


def plain(line: str) -> str:
    """Without colour codes and other terminal sequences."""
    return _ANSI.sub("", line) if "\x1b" in line else line

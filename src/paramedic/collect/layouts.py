"""Which rank wrote it: from the file's path, and from the prefixes that launchers put before each line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file says it comes from. In a torchrun folder `run` the rank is only the local one: a prefix may know."""

    rank: int | None = None
    attempt: int = 0
    run: str | None = None


_PACKED = r"(?:\.(?:gz|zst|bz2|xz))?$"
_PATHS = (
    re.compile(
        r"^(?P<run>(?:.*/)?)attempt_(?P<attempt>\d{1,5})/(?P<rank>\d{1,6})/(?:stdout\.log|stderr\.log|error\.json)"
        + _PACKED
    ),
    re.compile(r"(?:^|[/._-])rank[._-]?(?P<rank>\d{1,6})(?:$|[^/\d][^/]*$)", re.I),
    re.compile(r"(?:^|/)rank[._-]?(?P<rank>\d{1,6})/[^/]+$", re.I),
    # A bare number is a rank, but from four digits on rather a job's id (`sbatch --output=%j.out`).
    re.compile(
        r"(?:^|/)(?:(?:task|proc|process|worker|log)[._-])?(?P<rank>0\d{1,4}|\d{1,3})"
        r"\.(?:log|out|err|txt|stdout|stderr)" + _PACKED
    ),
)


def place_of(path: str) -> Place:
    for pattern in _PATHS:
        if (found := pattern.search(path)) is not None:
            parts = found.groupdict()
            return Place(int(parts["rank"]), int(parts.get("attempt") or 0), parts.get("run"))
    return Place()


By = Literal["torch", "tee", "launcher", ""]


class Peeled(NamedTuple):
    """A line without its prefixes, whose it is, and which prefix says so: only torch's is surely the global rank."""

    rank: int | None
    by: By
    text: str


_TORCH = re.compile(r"\[rank(\d{1,6})\]:[ \t]?")
_BURIED = 160  # so far behind other prefixes `[rankN]:` may stand
_TEE = re.compile(r"\[(?:default|trainer|worker)(\d{1,5})\]:")
_MPIRUN = re.compile(r"\[\d{1,9},(\d{1,6})\]<(?:stdout|stderr|stddiag)>:[ \t]?")
_SRUN = re.compile(r"[ \t]{0,6}(\d{1,6}):(?: |$)")
_SLURM_ITSELF = ("srun: ", "slurmstepd: ")
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_ENOUGH = 64


@dataclass(slots=True)
class Prefixes:
    """Peels rank prefixes off lines, layer by layer; lines with two of them teach it what the outer one counts."""

    srun: bool = False
    ranks: set[int] = field(default_factory=set)
    """Those that prefixes named, up to a few."""
    torch_ranks: set[int] = field(default_factory=set)
    _offsets: dict[str, set[int]] = field(default_factory=lambda: {"tee": set(), "launcher": set()})

    @classmethod
    def of(cls, sample: Sequence[str]) -> Prefixes:
        """`srun -l` labels every line. Numbered text looks like it, but its numbers only ever grow."""
        lines = [line for raw in sample if (line := plain(raw)).strip() and not line.startswith(_SLURM_ITSELF)]
        labels = [int(found[1]) for line in lines if (found := _SRUN.match(line))]
        numbered = all(a < b for a, b in pairwise(labels))
        return cls(srun=len(lines) >= 3 and len(labels) >= 0.9 * len(lines) and not numbered)

    def peel(self, line: str) -> Peeled:
        rank, by = None, ""
        if self.srun and (found := _SRUN.match(line)):
            rank, by, line = int(found[1]), "launcher", line[found.end() :]
        buried = line.find("[rank", 1, _BURIED)
        if buried > 0 and not line.startswith("[rank") and _TORCH.match(line, buried):
            if not _TEE.match(line) and not _MPIRUN.match(line):
                line = line[buried:]  # a time, a pod, a host or a stream stands before it
        elif not line.startswith("["):
            return self._seen(rank, by, line)
        if found := _MPIRUN.match(line):
            rank, by, line = int(found[1]), "launcher", line[found.end() :]
        if found := _TEE.match(line):
            rank, by, line = int(found[1]), "tee", line[found.end() :]
        if found := _TORCH.match(line):
            if by and rank is not None and len(self._offsets[by]) < _ENOUGH:
                self._offsets[by].add(int(found[1]) - rank)
            rank, by, line = int(found[1]), "torch", line[found.end() :]
        return self._seen(rank, by, line)

    def _seen(self, rank: int | None, by: str, line: str) -> Peeled:
        if rank is not None and len(self.ranks) < _ENOUGH:
            self.ranks.add(rank)
            if by == "torch":
                self.torch_ranks.add(rank)
        return Peeled(rank, by, line)  # type: ignore[arg-type]

    def global_rank(self, rank: int | None, by: By) -> int | None:
        """`[default3]:` counts ranks of one node, `srun -l torchrun` counts nodes: believed as far as torch agrees."""
        offsets = self._offsets.get(by)
        if rank is None or not offsets or offsets == {0}:
            return rank
        if by != "tee" or len(offsets) > 1:
            return None
        return max(rank + next(iter(offsets)), 0)

    def rank_of_file(self, rank: int | None) -> int | None:
        """The rank that a path names, unless the lines know better: another rank, or several, so it is nobody's."""
        if rank is None or len(self.ranks) > 1:
            return None
        return next(iter(self.torch_ranks)) if self.torch_ranks else rank


def plain(line: str) -> str:
    """Without colour codes and other terminal sequences."""
    return _ANSI.sub("", line) if "\x1b" in line else line

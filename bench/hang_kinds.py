"""What is planted, who is at fault, and what a right answer is; a seed decides ranks, steps and sizes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

WELL = 1000
"""Healthy runs are numbered from here."""
PROGRAMS = Path(__file__).parent / "hangs"
End = Literal["hangs", "fails", "either", "limps", "ends well"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table."""

    name: str
    program: str
    hows: tuple[str, ...]
    symptom: str
    also: str = ""
    """One other symptom that is right as well."""
    end: End = "hangs"
    where: Literal["any", "first", "middle"] = "any"
    """Ranks that can be at fault."""


KINDS = (
    Kind("missing rank", "metrics", ("skip", "short-epoch"), "collective-hang", "collective-desync"),
    Kind("order", "metrics", ("swap", "swap-sizes"), "collective-desync", "collective-hang", "either"),
    Kind("shape", "metrics", ("shorter", "longer"), "collective-desync", end="either"),
    Kind("dtype", "metrics", ("double", "half"), "collective-desync", end="either"),
    Kind("type", "metrics", ("broadcast", "gather"), "collective-desync", "collective-hang", "either"),
    Kind("data error", "loader", ("raise-main", "raise-worker"), "data-pipeline-failure", end="fails"),
    Kind(
        "data error, caught",
        "loader",
        ("raise-main-barrier", "raise-worker-barrier"),
        "data-pipeline-failure",
        "collective-hang",
    ),
    Kind("data stalled", "loader", ("stall-main", "stall-worker"), "collective-hang", "data-pipeline-failure"),
    Kind("asleep", "ddp", ("sleep", "poll", "fifo", "socket", "lock"), "collective-hang"),
    Kind("stopped", "ddp", ("stop",), "collective-hang", "worker-or-node-loss"),
    Kind("killed", "ddp", ("kill",), "worker-or-node-loss", "host-out-of-memory", "fails"),
    Kind("interpreter held", "ddp", ("native", "regex"), "collective-hang"),
    Kind(
        "checkpoint on rank 0",
        "checkpoint",
        ("barrier", "gather"),
        "collective-hang",
        "checkpoint-save-failure",
        "either",
        "first",
    ),
    Kind("subgroup", "groups", ("other", "order"), "collective-desync", "collective-hang"),
    Kind(
        "pipeline",
        "pipeline",
        ("twice", "peer", "tag", "direction"),
        "collective-desync",
        "collective-hang",
        where="middle",
    ),
    Kind("stale build lock", "extension", ("step",), "collective-hang", "build-or-install-failure"),
    Kind("stale lock at start", "extension", ("start",), "rendezvous-setup-hang", "build-or-install-failure"),
    Kind("slow data", "loader", ("slow-disk", "slow-parse"), "straggler-or-imbalance", end="limps"),
    Kind("slow compute", "ddp", ("work", "crowded"), "straggler-or-imbalance", end="limps"),
    Kind("slow link", "ddp", ("link",), "straggler-or-imbalance", end="limps"),
)
HEALTHY = tuple(
    Kind(path.stem.removeprefix("healthy_").replace("_", " "), path.stem, ("",), "", end="ends well")
    for path in sorted(PROGRAMS.glob("healthy_*.py"))
)


@dataclass(frozen=True, slots=True)
class Trial:
    number: int
    kind: Kind
    how: str
    world: int
    rank: int | None
    """At fault; none in a healthy run."""
    step: int
    batch: int

    @property
    def label(self) -> str:
        fault = "" if self.rank is None else f" ({self.how}), rank {self.rank} at step {self.step}"
        return f"{self.kind.name}{fault}, {self.world} ranks"


def faults(count: int, seed: int, only: str | None = None) -> list[Trial]:
    """Kinds in turn, each with its ways in turn: a hundred runs have five of each kind."""
    return [numbered(number, seed, only) for number in range(count)] if _kinds(KINDS, only) else []


def healthy(count: int, seed: int, only: str | None = None) -> list[Trial]:
    return [numbered(WELL + number, seed, only) for number in range(count)] if _kinds(HEALTHY, only) else []


def numbered(number: int, seed: int, only: str | None = None) -> Trial:
    kinds = _kinds(KINDS if number < WELL else HEALTHY, only)
    place = number % WELL
    return _trial(number, kinds[place % len(kinds)], place // len(kinds), seed)


def _kinds(kinds: tuple[Kind, ...], only: str | None) -> list[Kind]:
    return [kind for kind in kinds if only in (None, kind.name)]


def _trial(number: int, kind: Kind, turn: int, seed: int) -> Trial:
    choice = random.Random(f"{seed} {kind.name} {turn}")
    world = choice.choice((4, 4, 8))
    ranks = {"any": range(world), "first": range(1), "middle": range(1, world - 1)}[kind.where]
    rank = None if kind.end == "ends well" else choice.choice(ranks)
    step = choice.randrange(12, 30 if kind.end == "limps" else 60)
    step += step % 10 in (0, 9)  # not where the programs have another collective or checkpoint of their own
    step += step % 10 == 0
    return Trial(number, kind, kind.hows[turn % len(kind.hows)], world, rank, step, choice.choice((48, 64, 96)))

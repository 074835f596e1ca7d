"""Runs a rank of a recording again: the program that the user names, in one process, without its peers."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.rank.fingerprint import VARIABLES
from paramedic.replay.reading import Recording, score

AGENT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "rank", "site")
STDERR = 2
_DECIDING = ("torch", "python", "numpy", "machine", "processor", "threads", "device", "gpu", "deterministic")


@dataclass(frozen=True, slots=True)
class Wish:
    """How to replay."""

    command: Sequence[str]
    tolerant: bool = False
    until: int | None = None
    warm_up: int | None = None
    trust: bool = False
    pdb: bool = False
    ops: bool = False
    output: str | None = None
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one rank."""

    rank: int
    status: str
    why: str = ""
    first_step: int = 0
    last_step: int = 0
    calls: tuple[int, int] = (0, 0)
    checked: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    differences: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    other: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """What decides about bits and is not as it was: name → then, now."""
    origin: Mapping[str, Any] | None = None

    @property
    def is_bitwise(self) -> bool:
        return (
            self.status in ("complete", "reproduced", "stopped")
            and not self.differences
            and any(n for n, _ in self.checked.values())
        )


def replay(recording: Recording, rank: int, wish: Wish) -> Outcome:
    read = score(recording, rank)
    start = read.start()
    if read.head.get("payload") == "hash":
        raise ParamedicError(f"{recording.path}: was recorded with --payload hash: it can be compared, not replayed")
    refused = [line for (kind, _), lines in read.marks.items() if kind == "refused" for line in lines]
    if refused:
        raise ParamedicError(f"{recording.path}: rank {rank} used {refused[0].get('why')}: that cannot be replayed")
    _refuse_chance(recording, read.head, wish)
    first = start if start is not None else min(read.states, default=0)
    if wish.until is not None and wish.until <= first:
        raise ParamedicError(f"--until {wish.until}: the recording of rank {rank} begins with step {first + 1}")
    with tempfile.TemporaryDirectory(prefix="paramedic-") as place:
        result = os.path.join(place, "result.json")
        settings = {
            "folder": os.path.abspath(recording.folders[rank]), "rank": rank, "result": result, "start": first,
            "mode": "tolerant" if wish.tolerant else "strict", "until": wish.until, "warm_up": wish.warm_up,
            "trust": wish.trust, "pdb": wish.pdb, "ops": wish.ops,
            "output": os.path.abspath(wish.output) if wish.output else None,
        }  # fmt: skip
        code = _run(wish, environment(read.head, settings))
        return _outcome(rank, result, code, read.head["environment"])


def _refuse_chance(recording: Recording, head: Mapping[str, Any], wish: Wish) -> None:
    made = head["environment"]
    if made.get("device") == "cuda" and not made.get("deterministic") and not wish.tolerant:
        raise ParamedicError(
            f"{recording.path}: was made on a GPU without torch.use_deterministic_algorithms(True): its kernels "
            "may give other bits each time; --tolerant follows it and lists the differences"
        )


def environment(head: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, str]:
    """The user's own, and of the recording only what decides about ranks and bits."""
    made = head["environment"]
    then = made.get("variables")
    then = (
        {n: v[:200] for n, v in then.items() if n in VARIABLES and isinstance(v, str) and v.isprintable()}
        if isinstance(then, dict)
        else {}
    )
    before = os.environ.get("PYTHONPATH")
    threads = made.get("threads")
    return {
        **{name: value for name, value in os.environ.items() if name not in ("PARAMEDIC_WATCH", "PARAMEDIC_RANK_PID")},
        "OMP_NUM_THREADS": str(threads if isinstance(threads, int) else 1),
        "RANK": str(head.get("rank")),
        "WORLD_SIZE": str(head["world_size"]),
        "LOCAL_RANK": str(head.get("rank")),
        **then,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "PYTHONPATH": os.pathsep.join([AGENT, *([before] if before else [])]),
        "PARAMEDIC_REPLAY": json.dumps(settings),
    }


def _run(wish: Wish, variables: Mapping[str, str]) -> int:
    quiet = subprocess.DEVNULL if wish.quiet and not wish.pdb else None
    try:
        return subprocess.run(
            list(wish.command),
            env=dict(variables),
            stdout=None if wish.pdb else quiet or STDERR,
            stderr=quiet,
            check=False,
        ).returncode
    except OSError as error:
        raise ParamedicError(f"{wish.command[0]}: cannot be started: {error.strerror or error}") from None


def _outcome(rank: int, result: str, code: int, then: Mapping[str, Any]) -> Outcome:
    try:
        with open(result, encoding="utf-8") as file:
            said = json.load(file)
    except (OSError, ValueError):
        return Outcome(
            rank, "strange", f"the program ended with exit code {code} and told nothing; was it the training program?"
        )
    now = said["environment"]
    return Outcome(
        rank,
        said["status"],
        said["why"],
        said["steps"][0],
        said["steps"][1],
        (said["calls"][0], said["calls"][1]),
        {name: (same, of) for name, (same, of) in said["checked"].items()},
        tuple(said["differences"]),
        (*said["notes"], *([said["damage"]] if said["damage"] else ())),
        {name: (then.get(name), now.get(name)) for name in _DECIDING if then.get(name) != now.get(name)},
        said["origin"],
    )

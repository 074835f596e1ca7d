"""One run of a planted fault or of a healthy job under `paramedic run`, and what came of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from hang_kinds import PROGRAMS, Trial

LIMPING_SECONDS = 30.0
"""A slow job trains for so long, and some seconds more for each rank that shares the cores, before and after its fault."""
_POLL = 0.1


@dataclass(frozen=True, slots=True)
class Timing:
    limit: float = 90.0
    """Seconds from the fault to the end of the patience; healthy jobs get them on top of their own length."""
    start: float = 120.0
    """Seconds that a job may take until its fault."""
    long: float = 60.0
    """Seconds that the longest pause of a healthy job takes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    trial: Trial
    code: int | None
    """None: it was ended because its time was over."""
    planted: bool
    """Whether the fault was reached; if not, the run says nothing."""
    symptom: str | None = None
    ranks: tuple[int, ...] = ()
    seconds: float | None = None
    """From the fault to the first verdict."""
    warnings: tuple[str, ...] = ()
    summary: str = ""

    @property
    def right_rank(self) -> bool:
        return self.trial.rank is not None and self.ranks == (self.trial.rank,)

    @property
    def right_symptom(self) -> bool:
        return self.symptom is not None and self.symptom in (self.trial.kind.symptom, self.trial.kind.also)

    @property
    def innocent(self) -> bool:
        """Somebody is named who did nothing."""
        return any(rank != self.trial.rank for rank in self.ranks)

    @property
    def abstained(self) -> bool:
        return self.symptom is None or not self.ranks


def job(trial: Trial) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(trial.world), "train.py"),
    ]


def watched(trial: Trial, place: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "paramedic", "run", "--on-hang", "kill", "--format", "json"),
        *("--output", str(place / "report.json"), "--dir", str(place / "watched"), "--", *job(trial)),
    ]


def run(trial: Trial, place: Path, timing: Timing = Timing(), stop: Event | None = None) -> Outcome:
    """Watches one job to its end; whatever it started is gone afterwards."""
    code = execute(watched(trial, place), trial, place, timing, stop or Event())
    return judged(trial, place, code)


def execute(command: list[str], trial: Trial, place: Path, timing: Timing, stop: Event) -> int | None:
    prepare(trial, place)
    name = f"{os.getpid()}-{trial.number}-{time.monotonic_ns()}"
    with open(place / "output.txt", "wb") as output:
        process = subprocess.Popen(
            command,
            cwd=place,
            env=environment(trial, place, timing) | {"TRIAL": name},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return _awaited(process, trial, place, timing, stop)
        finally:
            end_all(f"TRIAL={name}")
            process.wait()


def prepare(trial: Trial, place: Path) -> None:
    """The program goes by an ordinary name: nothing in a stack or a log tells what is planted."""
    place.mkdir(parents=True, exist_ok=True)
    shutil.copy(PROGRAMS / "common.py", place / "common.py")
    shutil.copy(PROGRAMS / f"{trial.kind.program}.py", place / "train.py")
    os.mkfifo(place / "shard-00017")


def environment(trial: Trial, place: Path, timing: Timing) -> dict[str, str]:
    seconds = LIMPING_SECONDS + 2 * trial.world if trial.kind.end == "limps" else 3600
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "FAULT_HOW": trial.how,
        "FAULT_RANK": "-1" if trial.rank is None else str(trial.rank),
        "FAULT_STEP": str(trial.step),
        "FAULT_MARK": str(place / "mark"),
        "FAULT_FIFO": str(place / "shard-00017"),
        "BATCH": str(trial.batch),
        "SECONDS": str(seconds),
        "LONG": str(timing.long),
        "SEED": str(trial.number),
    }


def _awaited(process: subprocess.Popen[bytes], trial: Trial, place: Path, timing: Timing, stop: Event) -> int | None:
    healthy = trial.rank is None
    begun = time.time()
    while process.poll() is None:
        struck = marked(place)
        end = begun + timing.start if struck is None else struck + timing.limit
        if healthy:
            end = begun + timing.start + timing.limit + 3 * timing.long
        if time.time() > end or stop.is_set():
            return None
        stop.wait(_POLL)
    return process.returncode


def stopped(place: Path, struck: float) -> float:
    """When the last rank stopped: the fault, or what a rank still did after it, by the ranks' own last signs of life."""
    verdict = _json(place / "watched" / "verdict.json")
    if verdict.get("kind") != "hang":
        return struck
    states = [_json(path) for path in (place / "watched" / "ranks").glob("rank-*.watch.json")]
    return max([struck, *(float(one["at"]) - float(one["idle_s"]) for one in states if one.get("idle_s") is not None)])


def marked(place: Path) -> float | None:
    try:
        return float((place / "mark").read_text("ascii"))
    except (OSError, ValueError):
        return None


def end_all(variable: str) -> None:
    """Kills what has this variable in its environment: ranks leave the launcher's session, and stopped ones wait for ever."""
    for _ in range(3):
        for pid in _having(variable):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_POLL)


def _having(variable: str) -> Iterator[int]:
    wanted = variable.encode()
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    if wanted in file.read().split(b"\0"):
                        yield int(entry)
            except OSError:
                continue


# -- what was said -------------------------------------------------------------------------------------------------


def judged(trial: Trial, place: Path, code: int | None) -> Outcome:
    report = _json(place / "report.json") or _json(place / "watched" / "report.json")
    findings = [finding for finding in report.get("findings", []) if finding["severity"] == "warning"]
    answer = report.get("verdict") or _limping(trial, findings)
    struck = marked(place)
    said = _json(place / "watched" / "verdict.json").get("at")
    return Outcome(
        trial,
        code,
        planted=struck is not None or trial.rank is None,
        symptom=answer["symptom"] if answer else None,
        ranks=tuple(sorted(answer["ranks"])) if answer else (),
        seconds=max(0.0, said - stopped(place, struck)) if answer and said and struck else None,
        warnings=tuple(sorted({finding["symptom"] for finding in findings})),
        summary=answer["summary"] if answer else _last_line(place / "output.txt"),
    )


def _limping(trial: Trial, findings: list[dict[str, Any]]) -> dict[str, Any] | None:
    """A job that is only slow ends well: what is said of it is a warning."""
    if trial.kind.end != "limps":
        return None
    return next((finding for finding in findings if finding["symptom"] == trial.kind.symptom), None)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _last_line(path: Path) -> str:
    lines = path.read_text("utf-8", "replace").split("\n") if path.exists() else []
    return next((line.strip()[:160] for line in reversed(lines) if line.strip()), "")

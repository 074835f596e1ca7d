"""Everything that a hanging job shows without its help: stacks, states, dumps, logs, into one folder.

It only looks. py-spy pauses a process for the moment in which it reads its stack; a process that is stopped already is
read without that.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from paramedic.collect.processes import GONE, NAME, ProcessState
from paramedic.collect.stacks import waits_of
from paramedic.errors import ParamedicError
from paramedic.model import Skipped
from paramedic.watch.process import (
    Process,
    RankProcess,
    ancestors,
    look,
    missing,
    open_files,
    ranks_in,
    spawned_in,
    state_of,
    tree_of,
)

BETWEEN = 2.0
"""Seconds between two dumps: what has not moved in them stands."""
MAX_LOG = 16 << 20
MAX_TRACE = 256 << 20
_SPY_SECONDS = 30
_DUMP_SECONDS = 15.0
_AT_A_TIME = 8
_LOGS = (".log", ".txt", ".out", ".err", ".stdout", ".stderr")


# -- which processes -----------------------------------------------------------------------------------------------


def chosen(pids: Sequence[int], found: Mapping[int, Process], uid: int) -> list[RankProcess]:
    """The ranks of one job: the one that the pids belong to, else the only one of this user."""
    ranks = ranks_in(found)
    if pids:
        ranks = _of_pids(pids, found, ranks)
    else:
        ranks = [one for one in ranks if one.process.uid == uid and one.process.pid != os.getpid()]
    jobs: dict[tuple[str, ...], list[RankProcess]] = {}
    for one in ranks:
        jobs.setdefault(one.job, []).append(one)
    if not jobs:
        raise ParamedicError(
            "no rank of a job was found among your processes (none has RANK, OMPI_COMM_WORLD_RANK, PMI_RANK or"
            " SLURM_PROCID in its environment); name one of its processes with --pid"
        )
    if len(jobs) > 1:
        listed = "; ".join(f"--pid {job[0].process.pid}: {_about(job)}" for job in jobs.values())
        raise ParamedicError(f"{len(jobs)} jobs run here, choose one: {listed}")
    by_rank = {one.rank: one for one in sorted(ranks, key=lambda one: -one.process.started)}
    return sorted(by_rank.values(), key=lambda one: one.rank)


def _about(job: Sequence[RankProcess]) -> str:
    script = next((word for word in job[0].process.command[1:] if not word.startswith("-")), "?")
    return f"{len(job)} rank{'s' if len(job) > 1 else ''} of {os.path.basename(script)[:80]}"


def _of_pids(pids: Sequence[int], found: Mapping[int, Process], ranks: Sequence[RankProcess]) -> list[RankProcess]:
    if unknown := [pid for pid in pids if pid not in found]:
        raise ParamedicError(f"--pid {unknown[0]}: no such process, or none that may be looked at")
    tree = {below for pid in pids for below in tree_of(pid, found)}
    near = [one for one in ranks if one.process.pid in tree]
    if not near:
        above = {up for pid in pids for up in ancestors(found[pid], found)}
        near = [one for one in ranks if one.process.pid in above]
    if near:
        jobs = {one.job for one in near if one.job}
        return [one for one in ranks if one.job in jobs or one in near]
    beside = {below for pid in pids if found[pid].is_spawned for below in tree_of(found[pid].parent, found)}
    spawned = spawned_in(found, (beside or tree) & found.keys())
    return spawned or [RankProcess(rank, found[pid], (), guessed=True) for rank, pid in enumerate(pids)]


# -- what they show ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spy:
    """py-spy's program, beside this Python's or on the path."""

    program: str

    @classmethod
    def here(cls) -> Spy | None:
        beside = Path(sys.executable).with_name("py-spy")
        program = str(beside) if beside.is_file() else shutil.which("py-spy")
        return cls(program) if program else None

    def dump(self, pid: int, *options: str) -> tuple[str, str]:
        """(what it printed, why it failed)."""
        command = [self.program, "dump", "--full-filenames", *options, "--pid", str(pid)]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=_SPY_SECONDS, stdin=subprocess.DEVNULL, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return "", f"py-spy: {type(error).__name__}"
        if done.returncode == 0:
            return done.stdout.decode("utf-8", "replace"), ""
        lines = done.stderr.decode("utf-8", "replace").strip().split("\n")
        return "", f"py-spy: {lines[0].removeprefix('Error: ')[:200] or 'failed'}"


def take(ranks: Sequence[RankProcess], folder: Path, spy: Spy | None, nonblocking: bool = False) -> list[Skipped]:
    """Writes all that is to be seen into the folder; what could not be had is said."""
    skipped = [] if spy else [Skipped("stacks", "py-spy is not installed: pip install py-spy")]
    skipped += [Skipped(f"rank of process {one.process.pid}", f"taken as {one.rank}, by the order of their start")
                for one in ranks if one.guessed]  # fmt: skip
    texts, _ = _dumped(ranks, spy, nonblocking)
    before = {one.rank: look(one.process.pid) or one.process for one in ranks}
    start = time.monotonic()
    time.sleep(BETWEEN)
    seconds = time.monotonic() - start
    states = [state_of(one, before[one.rank], look(one.process.pid), seconds) for one in ranks]
    unclear = {one.rank for one in ranks if not waits_of(texts.get(one.rank, ""))}
    again, failures = _dumped(ranks, spy, nonblocking, unclear)
    for one in ranks:
        if text := texts.get(one.rank, "") + again.get(one.rank, ""):
            _put(folder / "stacks" / f"rank-{one.rank}.txt", text.encode("utf-8", "replace"))
    if failures and not texts and not again:
        skipped.append(Skipped("stacks", f"{next(iter(failures.values()))}; it may need root or SYS_PTRACE"))
    skipped += [Skipped(f"stack of rank {rank}", why) for rank, why in failures.items()]
    for state in [*states, *_gone(ranks)]:
        _put(folder / "ranks" / f"rank-{state.rank}{NAME}", state.written())
    skipped += _traces(ranks, folder)
    _logs(ranks, folder)
    return skipped


def _dumped(
    ranks: Sequence[RankProcess], spy: Spy | None, nonblocking: bool, native: Set[int] = frozenset()
) -> tuple[dict[int, str], dict[int, str]]:
    """Of several ranks at a time, so that they show one moment; of `native` ranks also C functions."""

    def one_of(one: RankProcess) -> tuple[int, str, str]:
        now = look(one.process.pid)
        if spy is None or now is None:
            return one.rank, "", ""
        quiet = ["--nonblocking"] if nonblocking or now.state in "Tt" else []
        text, why = spy.dump(one.process.pid, "--native") if one.rank in native and not quiet else ("", "")
        if not text:
            text, why = spy.dump(one.process.pid, *quiet)
        return one.rank, text, why

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        found = list(pool.map(one_of, ranks))
    return {rank: text for rank, text, _ in found if text}, {rank: why for rank, _, why in found if why}


def _gone(ranks: Sequence[RankProcess]) -> list[ProcessState]:
    size = next((one.world_size for one in ranks if one.world_size), None)
    return [ProcessState(rank, GONE, host=os.uname().nodename, world_size=size) for rank in missing(ranks)]


# -- what they left ------------------------------------------------------------------------------------------------


def _traces(ranks: Sequence[RankProcess], folder: Path) -> list[Skipped]:
    """Flight-recorder dumps: asked for where torch listens to a pipe, else found on disk if younger than the rank."""
    asked = {one.rank: time.time() for one in ranks if _ask(one)}
    skipped = []
    for one in ranks:
        since = asked.get(one.rank, one.process.started)
        path = _awaited(one, since) if one.rank in asked else _newest(one, since)
        if path is not None:
            _copy(path, folder / "traces" / f"rank_{one.rank}", MAX_TRACE, tail=False)
        elif one.rank in asked:
            skipped.append(Skipped(f"trace of rank {one.rank}", f"asked for, did not appear in {_DUMP_SECONDS:.0f} s"))
    return skipped


def _ask(one: RankProcess) -> bool:
    """torch writes its dump when somebody writes into the pipe that the rank's environment names."""
    prefix = one.process.environment.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "")
    path = f"{prefix}{one.rank}.pipe"
    try:
        if not prefix or not stat.S_ISFIFO(os.stat(path).st_mode):
            return False
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)  # nobody reads it: an error, not a wait
        try:
            return os.write(pipe, b"1") == 1
        finally:
            os.close(pipe)
    except OSError:
        return False


def _places_of_traces(one: RankProcess) -> Iterable[str]:
    said = one.process.environment
    home = said.get("XDG_CACHE_HOME") or os.path.join(said.get("HOME", "/nowhere"), ".cache")
    named = [said.get("TORCH_FR_DUMP_TEMP_FILE", ""), said.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "")]
    usual = [os.path.join(home, "torch", "comm_lib_trace_rank_"), "/tmp/nccl_trace_rank_", "/tmp/comm_lib_trace_rank_"]
    return (f"{prefix}{one.rank}" for prefix in (*filter(None, named), *usual))


def _newest(one: RankProcess, since: float) -> Path | None:
    found = []
    for name in _places_of_traces(one):
        try:
            about = os.stat(name)
        except OSError:
            continue
        if stat.S_ISREG(about.st_mode) and about.st_size and about.st_mtime >= since - 1:
            found.append((about.st_mtime, name))
    return Path(max(found)[1]) if found else None


def _awaited(one: RankProcess, since: float) -> Path | None:
    """The file that torch writes now, once it no longer grows."""
    end, size = time.monotonic() + _DUMP_SECONDS, -1
    while time.monotonic() < end:
        path = _newest(one, since)
        now = path.stat().st_size if path else -1
        if path is not None and now == size:
            return path
        size = now
        time.sleep(0.2)
    return _newest(one, since)


def _logs(ranks: Sequence[RankProcess], folder: Path) -> None:
    """What the ranks have open for writing, and where their launchers print; a file of several ranks is copied once."""
    held: dict[str, set[int | None]] = {}
    for one in ranks:
        for path, is_output in open_files(one.process.pid).items():
            if is_output or path.endswith(_LOGS):
                held.setdefault(path, set()).add(one.rank)
    for pid in {one.process.parent for one in ranks}:
        for path, is_output in open_files(pid).items():
            if is_output:
                held.setdefault(path, set()).add(None)
    taken: Counter[str] = Counter()
    for path, whose in held.items():
        rank = next(iter(whose)) if len(whose) == 1 else None
        name = ("" if rank is None else f"rank-{rank}.") + os.path.basename(path)
        taken[name] += 1
        name = name if taken[name] == 1 else f"{taken[name]}-{name}"
        name = name if name.endswith(_LOGS) else f"{name}.log"
        if not Path(path).is_relative_to(folder.resolve()):
            _copy(Path(path), folder / "logs" / name, MAX_LOG, tail=True)


def _copy(path: Path, target: Path, most: int, tail: bool) -> None:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > most and not tail:
                return
            if size > most:
                file.seek(size - most)
                file.readline()
            _put(target, file.read(most))
    except OSError:
        return  # it was ours to read a moment ago: whatever happened, the rest is worth having


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_bytes(data)

"""The ranks of a job among this node's processes, as /proc shows them: read only, nothing is asked of a process."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paramedic.collect.processes import GONE, ProcessState

PROC = "/proc"
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_JOB = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID", "OMPI_MCA_ess_base_jobid")
_KEPT = frozenset(
    [
        *_RANK, *_WORLD, *_LOCAL, *_JOB, "LOCAL_WORLD_SIZE", "GROUP_RANK", "HOME", "XDG_CACHE_HOME",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE",
    ]
)  # fmt: skip
"""Of a process's environment no more is kept: the rest is nobody's business."""
_LAUNCHERS = re.compile(
    r"(?:^|/)(?:torchrun|deepspeed|accelerate(?:-launch)?|mpirun|mpiexec(?:\.hydra)?|orterun|prterun|horovodrun|srun|ray"
    r"|colossalai|slurmstepd|prted|orted|hydra_pmi_proxy)$"
    r"|^(?:torch\.distributed\.(?:run|launch|launcher\..*)|deepspeed\.launcher\.\w+|accelerate\.commands\.\w+"
    r"|horovod\.runner|ray\..*)$"
    r"|/(?:torch/distributed/(?:run|launch)|deepspeed/launcher/launch|deepspeed/launcher/runner)\.py$"
)
_SPAWNED = re.compile(r"\bfrom multiprocessing\.spawn import spawn_main\b")
_TICKS = os.sysconf("SC_CLK_TCK")
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    command: tuple[str, ...]
    state: str
    cpu: float
    """Seconds of CPU time."""
    started: float
    """In seconds since the epoch."""
    uid: int
    program: str
    """The name of the file that it runs."""
    environment: Mapping[str, str] = field(default_factory=dict)
    wchan: str = ""

    def number(self, names: Iterable[str]) -> int | None:
        said = next((self.environment[name] for name in names if name in self.environment), "")
        return int(said) if said.isascii() and said.isdigit() and len(said) < 8 else None

    @property
    def rank(self) -> int | None:
        return self.number(_RANK)

    @property
    def is_python(self) -> bool:
        return self.program.startswith(("python", "pypy"))

    @property
    def is_launcher(self) -> bool:
        return any(_LAUNCHERS.search(word) for word in self.command[:4])

    @property
    def is_spawned(self) -> bool:
        """By multiprocessing, as a fresh Python."""
        return self.is_python and any(map(_SPAWNED.search, self.command))

    @property
    def job(self) -> tuple[str, ...]:
        """What the ranks of one job have in common."""
        return tuple(f"{name}={self.environment[name]}" for name in _JOB if name in self.environment)


@dataclass(frozen=True, slots=True)
class RankProcess:
    rank: int
    process: Process
    job: tuple[str, ...]
    guessed: bool = False
    """No variable says the rank: it is the place among the children of `torch.multiprocessing.spawn`."""

    @property
    def world_size(self) -> int | None:
        return self.process.number(_WORLD)


def processes(proc: str = PROC) -> dict[int, Process]:
    """All that may be looked at; those that end meanwhile are left out."""
    boot = _boot_time(proc)
    found = (look(int(name), proc, boot) for name in os.listdir(proc) if name.isdigit())
    return {one.pid: one for one in found if one is not None}


def look(pid: int, proc: str = PROC, boot: float | None = None) -> Process | None:
    folder = Path(proc, str(pid))
    try:
        # The program's name stands in brackets and may hold anything, also brackets.
        fields = _read(folder / "stat").rpartition(")")[2].split()
        command = _read(folder / "cmdline").split("\0")[:-1]
        uid = os.stat(folder).st_uid
    except (OSError, ValueError):
        return None
    if len(fields) < 20:
        return None
    boot = _boot_time(proc) if boot is None else boot
    return Process(
        pid=pid,
        parent=int(fields[1]),
        command=tuple(command),
        state=fields[0],
        cpu=(int(fields[11]) + int(fields[12])) / _TICKS,
        started=boot + int(fields[19]) / _TICKS,
        uid=uid,
        program=os.path.basename(_link(folder / "exe") or (command[0] if command else "")),
        environment=_environment(folder),
        wchan=_read_or_nothing(folder / "wchan"),
    )


def ranks_in(found: Mapping[int, Process]) -> list[RankProcess]:
    """The processes that are ranks: Python, told their rank, no launcher, and not a child of a rank."""
    told = {pid: one for pid, one in found.items() if one.rank is not None and one.is_python and not one.is_launcher}
    ranks = [RankProcess(one.rank or 0, one, one.job) for pid, one in told.items() if not _above(one, found, told)]
    # A wrapper that a scheduler gave a rank is none where its children have ranks of their own.
    parents = {above for one in ranks for above in ancestors(one.process, found)}
    return sorted((one for one in ranks if one.process.pid not in parents), key=lambda one: (one.job, one.rank))


def spawned_in(found: Mapping[int, Process], tree: Iterable[int]) -> list[RankProcess]:
    """Children of `torch.multiprocessing.spawn`, which get their ranks as arguments: in the order of their start."""
    children = [found[pid] for pid in tree if found[pid].is_spawned]
    pids = {one.pid for one in children}
    first = sorted((one for one in children if one.parent not in pids), key=lambda one: (one.started, one.pid))
    return [RankProcess(rank, one, (), guessed=True) for rank, one in enumerate(first)]


def tree_of(pid: int, found: Mapping[int, Process]) -> list[int]:
    """The process and all below it."""
    children: dict[int, list[int]] = {}
    for one in found.values():
        children.setdefault(one.parent, []).append(one.pid)
    tree, waiting = [], [pid]
    while waiting:
        here = waiting.pop()
        tree.append(here)
        waiting += children.get(here, ())
    return tree


def missing(ranks: Sequence[RankProcess]) -> list[int]:
    """Ranks that this node must have, by what its other ranks were told, and that have no process."""
    gone: set[int] = set()
    here = {one.rank for one in ranks}
    for one in ranks:
        size, local = one.process.number(["LOCAL_WORLD_SIZE"]), one.process.number(_LOCAL)
        if size is not None and local is not None and local < size <= 1024:
            gone |= {one.rank - local + number for number in range(size)}
    return sorted(rank for rank in gone - here if rank >= 0)


def state_of(one: RankProcess, before: Process, now: Process | None, seconds: float) -> ProcessState:
    """What two looks at it say."""
    last = now or before
    used = round(max(now.cpu - before.cpu, 0.0) / seconds, 3) if now and seconds > 0 else None
    state = GONE if now is None else now.state
    return ProcessState(
        rank=one.rank,
        state=state if state in "RSDTtZXI" or state == GONE else "S",
        pid=last.pid,
        host=socket.gethostname(),
        world_size=one.world_size,
        wchan="" if now is None else now.wchan,
        cpu=round(last.cpu, 2),
        used=used,
        started=round(last.started, 2),
        command=" ".join(last.command)[:400],
    )


def open_files(pid: int, proc: str = PROC) -> dict[str, bool]:
    """Regular files that it has open for writing, and whether it is where its output or its errors go."""
    folder = Path(proc, str(pid))
    found: dict[str, bool] = {}
    try:
        names = sorted(os.listdir(folder / "fd"), key=int)
    except (OSError, ValueError):
        return {}
    for name in names[:1024]:
        target = _link(folder / "fd" / name)
        writes = re.search(r"^flags:\s+0?[0-7]*([0-7])$", _read_or_nothing(folder / "fdinfo" / name), re.M)
        if target.startswith("/") and writes and int(writes[1]) & 3 and os.path.isfile(target):
            found[target] = found.get(target, False) or name in ("1", "2")
    return found


def _above(one: Process, found: Mapping[int, Process], told: Mapping[int, Process]) -> bool:
    """Some process above it is the same rank: it is a worker of that one's data loader, say."""
    return any(pid in told and told[pid].rank == one.rank for pid in ancestors(one, found))


def ancestors(one: Process, found: Mapping[int, Process]) -> list[int]:
    line: list[int] = []
    parent = found.get(one.parent)
    while parent is not None and parent.pid not in line:
        line.append(parent.pid)
        parent = found.get(parent.parent)
    return line


def _boot_time(proc: str) -> float:
    said = re.search(r"^btime (\d+)$", _read_or_nothing(Path(proc, "stat")), re.M)
    return float(said[1]) if said else 0.0


def _environment(folder: Path) -> dict[str, str]:
    """As it was when the process began; of others' processes nothing."""
    pairs = (pair.partition("=") for pair in _read_or_nothing(folder / "environ").split("\0"))
    return {name: value[:4096] for name, _, value in pairs if name in _KEPT}


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES).decode("utf-8", "replace")


def _read_or_nothing(path: Path) -> str:
    try:
        return _read(path)
    except OSError:
        return ""


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""

"""Which rank wrote it: from the file's path, and from the prefixes that launchers put before each line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

from paramedic.collect.identity import MAX_WORLD_SIZE
from paramedic.regex import regex

LITERALS = ("world_rank=", " nranks ", "Error Snippet]:", "[FailurePolicy]", "WorkerDict_", "n_gpus_per_node")
"""Lines that say which process is which rank, wherever they stand."""


# -- files ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file says it comes from. In a torchrun folder `run` the rank is only the local one: a prefix may know."""

    rank: int | None = None
    attempt: int = 0
    run: str | None = None
    host: str | None = None
    pod: str | None = None
    """The pod's role, `worker`: where there is a master, too, the master is rank 0."""
    group: str | None = None
    """`slurm-4711_`, or a folder, before a number that is only a rank if others of this name count from 0."""


_PACKED = r"(?:\.(?:gz|zst|bz2|xz))?$"
_LOG = r"\.(?:log|out|err|txt|stdout|stderr)" + _PACKED
_PATHS = (
    regex(
        r"^(?P<run>(?:.*/)?)attempt_(?P<attempt>\d{1,5})/(?P<rank>\d{1,6})/(?:\w{1,40}\.log|error\.json)"
        + _PACKED
    ),
    regex(r"(?:^|[/._-])(?:global[._-]?|world[._-]?)?rank[._-]?(?P<rank>\d{1,6})(?:$|[^/\d][^/]*$)", re.I),
    regex(r"(?:^|/)rank[._-]?(?P<rank>\d{1,6})/[^/]+$", re.I),
    regex(r"\.prterun-[\w.-]{1,80}@\d{1,5}\.(?P<rank>\d{1,6})\.(?:out|err)" + _PACKED),
    # A set of jobs numbers these, too: beside its only one stands the number of the pod.
    regex(
        r"(?:^|[/._-])(?P<pod>master|chief|worker)-(?:0-(?=\d{1,4}(?!\d)))?(?P<rank>\d{1,5})(?:-[a-z0-9]{5})?" + _LOG
    ),
    regex(r"(?:^|/)workerlog\.(?P<rank>\d{1,3})" + _PACKED),  # Paddle
    regex(r"(?:^|/)workerpool(?P<pool>[01])-(?P<rank>\d{1,4})(?:\.\w{1,6})?$"),  # Vertex AI
    regex(r"(?:^|/)(?:task|proc|(?:std_log_)?process|worker|log)[._-](?P<rank>0\d{1,4}|\d{1,3})" + _LOG),
    # A bare number may be a rank if others count with it; from four digits on it is rather a job's (sbatch's %j.out).
    regex(r"(?P<group>^|^.*/)(?P<rank>0\d{1,4}|\d{1,3})" + _LOG),
    regex(r"(?P<group>(?:^|/)[A-Za-z][\w.]{0,60}?[-_.]\d{2,12}[-_.](?:task[-_.]?)?)(?P<rank>\d{1,4})" + _LOG),
    regex(
        r"(?:^|/)(?:[\w.]{1,60}[-_.]\d{2,12}[-_.])?(?P<host>(?:node|host|gpu|nid|cn|compute|ip)-?\d[\w-]{0,40})" + _LOG
    ),
)  # fmt: skip


_POOLS = {"0": "chief", "1": "worker"}
"""Vertex AI's first pool has one replica, the chief; the second has the workers."""


def place_of(path: str) -> Place:
    for pattern in _PATHS:
        if (found := pattern.search(path)) is not None:
            parts = found.groupdict()
            return Place(
                rank=int(parts["rank"]) if parts.get("rank") else None,
                attempt=int(parts.get("attempt") or 0),
                run=parts.get("run"),
                host=parts.get("host"),
                pod=_POOLS.get(parts.get("pool", ""), parts.get("pod")),
                group=parts.get("group"),
            )
    return Place()


_FAMILY = regex(r"^(.*[A-Za-z\d][-_.]?)(?<!\d)(\d{1,4})((?:/\w{1,20})?(?:\.[a-z]{2,6}){0,2})$")


def numbered(path: str) -> tuple[str, int] | None:
    """What files like `mae_0.log`, `out.0` or `trainer-0/stdout` have in common, and the number in their name."""
    found = _FAMILY.search(path)
    return (f"{found[1]}#{found[3]}", int(found[2])) if found else None


_RAY_FILE = regex(r"(?:^|/)worker-[0-9a-f]{4,64}-[0-9a-f]{8}-(\d{1,10})\.(?:out|err)$")


def process_of(path: str) -> int:
    """The number of the process whose output Ray wrote there; 0 for other files."""
    found = _RAY_FILE.search(path)
    return int(found[1]) if found else 0


def ranks_of_places(places: Sequence[Place]) -> list[int | None]:
    """What all names together say: a pod's worker 0 is rank 1 beside a master, and numbers count from 0."""
    master = any(place.pod in ("master", "chief") for place in places)
    groups: dict[str, set[int]] = {}
    for place in places:
        if place.group is not None and place.rank is not None:
            groups.setdefault(place.group, set()).add(place.rank)
    counted = {group for group, ranks in groups.items() if len(ranks) > 1 and ranks == set(range(len(ranks)))}
    ranks: list[int | None] = []
    for place in places:
        rank = None if place.group is not None and place.group not in counted else place.rank
        ranks.append(rank + 1 if rank is not None and master and place.pod == "worker" else rank)
    return ranks


# -- lines ---------------------------------------------------------------------------------------------------------

By = Literal["torch", "tee", "launcher", "process", "host", "said", "group", "echo", ""]
Who = tuple[By, int | None, str]
"""What tells the speakers of a file apart: the kind of prefix, its number, and the host, pod or process beside it."""


class Peeled(NamedTuple):
    """A line without its prefixes, whose it is, and which prefix says so: only torch's is surely the global rank."""

    rank: int | None
    by: By
    text: str
    stream: str = ""
    """The host or pod, or the process as `pid@host`."""

    @property
    def prefixed(self) -> bool:
        """Somebody else has put before the line who speaks."""
        return self.by not in ("", "said", "group")

    @property
    def who(self) -> Who:
        """Lines of one speaker have the same. What a program says of itself within a line is no prefix."""
        if self.by in ("said", "group"):
            return ("host" if self.stream else ""), None, self.stream
        return self.by, self.rank, self.stream


_TORCH = regex(r"\[rank(\d{1,6})\]:[ \t]?")
_BURIED = 160  # so far behind other prefixes `[rankN]:` may stand
_TEE = regex(r"\[(?:default|trainer|worker)(\d{1,5})\]:")
_TEE_BY_ROLE = regex(r"\[rank(\d{1,5})\]:")
_ROLE_IS_RANK = regex(r"--role[ =]rank\b.{0,200}--tee\b|--tee\b.{0,200}--role[ =]rank\b")
"""torchtitan's launcher names the role so: what torchrun then tees looks like torch's own prefix, with local ranks."""
_TORCHX = regex(r"([\w.]{1,60})/(\d{1,5}) (?=\[(?:default|trainer|worker)\d)")
"""Role and node, as torchx writes them before what torchrun tees."""
_MPIRUN = regex(
    r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4} ?)?"
    r"\[(?:[\w.-]{1,100}@)?(?:\d{1,9},)?(?:rank |mpirank:)?(\d{1,6})(?:,[\w-]{1,40})?\](?:\[([\w.-]{1,80}):\d{1,9}\])?"
    r"<std(?:out|err|diag)>: ?"
)
_STAMP = regex(
    r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)(?: (?:stdout|stderr) [FP])?(?: |$)"
)
_SKYPILOT = regex(r"\(((?:head|worker\d{1,5})), rank=\d{1,6}, pid=\d{1,10}(?:, ip=[\d.]{7,15})?\) ?")
"""SkyPilot's label of a node; its rank is the node's."""
_DETERMINED = regex(r"(?:\[[\dT:.Z -]{10,40}\] )?([0-9a-f]{8,64}) (?:\[[A-Z]{3,20}\] )?\|\| ?(?:\[rank=(\d{1,6})\] ?)?")
"""Time, container and state, and the rank where its own wrapper knows it."""
_POD = regex(r"\[pod/([^/\]]{1,253})/[^\]]{1,253}\] ?")
_RAY = regex(
    r"\((?:([^\n]{1,200}?) )??(?:pid=(\d{1,10})|raylet|autoscaler[^\n)]{0,20})(?:, ip=([\w.:-]{1,64}))?\)[ \t]?"
)
_ASIDE = ("PlacementGroupCleaner", "PreemptionWatcher", "StateManagerActor")  # they log what they then survive
_REPEATED = regex(r" \[repeated \d{1,9}x across cluster\]")
_RAY_RANK = regex(r"\(.{0,120}?\bip=([\w.:-]{1,64}), pid=(\d{1,10})\) world_rank=(\d{1,6})\b")
_RAY_GROUP = regex(r"WorkerDict_(\d{1,4}):(\d{1,4})\b[^\s,]{0,80}, pid=(\d{1,10})\b")
"""How verl names the workers of a node: the node's number, and theirs on it."""
_PER_NODE = regex(r"n_gpus_per_node\W{1,4}(\d{1,3})\b")
_RAY_SELF = regex(r"Setting up process group for: \S{1,200} \[rank=(\d{1,6}), world_size=")
_SNIPPET = regex(r"\[Rank ([\d, ]{1,2000}) Error Snippet\]:")
_MET = regex(r"\bglobal_ranks=\[(\d{1,6}(?:, ?\d{1,6}){0,1023})\]")
_NCCL = regex(
    r"(?:\[[^\]\n]{1,60}\] ?|\d{4}-\d\d-\d\d[ T][\d:.,]{8,15}Z? )?([\w.-]{1,100}):(\d{1,10}):\d{1,10} \[(-?\d{1,3})\] "
)
_NCCL_SENDS = regex(r"Channel \d{1,3}(?:/\d{1,3})? : (\d{1,6})\[\w{1,12}\] -> \d{1,6}\[\w{1,12}\](?: \[send\])? via ")
_NCCL_RANK = regex(r"\brank (\d{1,6}) nranks (\d{1,6})\b")
_SAID = regex(
    r"^[\d:.,TZ+/ -]{0,40}(?:\[[^\]\n]{1,80}\][ :]{0,2}|[A-Z]{4,8}[ :]{1,2}){0,4}"
    r"\[(?:[Rr]ank|RANK|process|proc|R|r)[ :=#-]{0,2}(\d{1,6})(?:/\d{1,6})?\]"
)
_TAGS = ("[r", "[R", "[proc")
_IN_GROUP = regex(r"\[Rank (\d{1,6})\] (?=(?:NCCL )?[Ww]atchdog )(?:.{0,120}?WorkNCCL\((.{0,40}?)(?:, Num|[,)] ?Tim))?")
"""Torch before 2.2 wrote no `[rank3]:`; its watchdog names the rank in its process group, as all such jobs with one."""
_MANY_GROUPS = regex(r"megatron|(?:model|tensor|pipeline|sequence|expert)[-_ ]?(?:model[-_ ])?parallel", re.I)
_SEVERAL_NODES = regex(
    r"nnodes[ =:]+(?!1\b)|node[-_]rank[ =:]+(?!0\b)|(?:num_machines|num_nodes)[ =:]+(?!1\b)|machine_rank[ =:]+(?!0\b)"
    r"|\b(?:pdsh|srun|slurmstepd|hostfile|mpirun|rdzv[-_]endpoint)\b|\bnode[ _-]?[1-9]\d?\b",
    re.I,
)
_SRUN = regex(r"[ \t]{0,6}(\d{1,6}):(?: |$)")
_OUTER = {
    "srun": _SRUN,
    "hydra": regex(r"\[(\d{1,6})\](?!<std) ?"),
    "host": regex(r"([A-Za-z0-9][\w.-]{0,100}):(?: |$)"),
    "compose": regex(r"([A-Za-z0-9][\w.-]{0,100}) {1,40}\| ?"),
    "bracket": regex(
        r"\[(?!(?:rank|r|proc\w{0,4}|worker|trainer|default|gpu|cuda|device|stage|step|it\w{0,7}|epoch|local|[dtpce]p|p)[-_:#]?\d)"
        r"([A-Za-z][\w.-]{0,100})\](?: |$)",
        re.I,
    ),
    "stern": regex(r"([a-z0-9][a-z0-9.-]{0,252}) [a-z0-9][a-z0-9-]{0,62}(?: |$)"),
}
_NUMBERED = ("srun", "hydra")
_FRAME = regex(r"#\d{1,3} \S{1,200} from /|frame #\d{1,3}: ")
"""As torch writes the stack of a collective that failed, or of its own exception."""
_HAS_NUMBER = regex(r"\d")
_POD_NAME = regex(r"(?:^|-)(?:(master|chief|launcher|ps|evaluator|head)s?-)?(?:\d{1,3}-)?(\d{1,5})(?:-[a-z0-9]{5})?$")
_NO_WORKER = ("launcher", "ps", "evaluator", "head")
_LAUNCHERS_OWN = ("srun: ", "slurmstepd: ", "pdsh@", "[20", "mpirun", "mpiexec", "prterun")
_SPAWNED = regex(r"\bprocess (\d{1,10}) spawned with command: .{0,400}?--local_rank[= ](\d{1,5})\b")
_DEEPSPEED = regex(r"\bnnodes=\d{1,6}, num_local_procs=(\d{1,5}), node_rank=(\d{1,6})\b")
_IN_TABLE = regex(r" {1,8}rank {1,12}: (\d{1,6}) \(local_rank: \d{1,5}\)$")
"""Of torchrun's failures: behind srun's label it tells that the label counts nodes."""
_RICH = regex(r"(?:\[\d\d/\d\d/\d\d \d\d:\d\d:\d\d\]| {19}) (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) +\S")
_COLUMN = " " * 20
_GLUED = regex(r"\[rank\d{1,6}\]:")
_ANSI = regex(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_ENOUGH = 64
_MANY = 65_536


@dataclass(slots=True)
class Prefixes:
    """Peels rank prefixes off lines, layer by layer; lines with two of them teach it what the outer one counts."""

    outer: str = ""
    """What stands before every line of this file: a key of `_OUTER`."""
    on_a_node: int = 1
    """So many processes the launcher was asked to start on each."""
    of_launcher: bool = False
    """It has the table of a launcher: what its path names is a node, or a task that started several ranks."""
    ranks: set[int] = field(default_factory=set)
    """Those that prefixes named, up to a few."""
    torch_ranks: set[int] = field(default_factory=set)
    hosts: dict[int, str] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)
    _offsets: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    _in_stream: dict[str, set[int]] = field(default_factory=dict)
    _processes: dict[str, int] = field(default_factory=dict)
    _by_pid: dict[str, set[int]] = field(default_factory=dict)
    _communicator: int = 0
    _per_node: int = 0
    _devices: dict[str, int] = field(default_factory=dict)
    _snippet: dict[str, int] = field(default_factory=dict)
    _local: dict[str, int] = field(default_factory=dict)
    _first_on: dict[str, int] = field(default_factory=dict)
    _in_group: dict[int, str] = field(default_factory=dict)
    _groups: bool = False
    """Ranks in process groups are those of the job no longer: there are several groups."""
    _sample: Sequence[str] = ()
    _tee: re.Pattern[str] = _TEE

    @classmethod
    def of(cls, sample: Sequence[str]) -> Prefixes:
        """What labels every line. Numbered text looks like `srun -l`, but its numbers only ever grow."""
        lines = [line for raw in sample if (line := bare(plain(raw))).strip() and not line.startswith(_LAUNCHERS_OWN)]
        outer = next((kind for kind in _OUTER if len(lines) >= 3 and _labels(kind, lines)), "")
        named_rank = any("--role" in line and _ROLE_IS_RANK.search(line[:1_000]) for line in lines)
        return cls(outer, _sample=lines, _tee=_TEE_BY_ROLE if named_rank else _TEE)

    @property
    def on_one_node(self) -> bool:
        """Nothing shows that ranks of a node are others than those of the job."""
        by_nccl = {process.rpartition("@")[2] for process in self._devices}
        hosts = {*self._in_stream, *self.hosts.values()}
        several = max(len(hosts), len(by_nccl)) > 1 or any(map(any, self._offsets.values()))
        return not (several or self._first_on or self._speaks_of(_SEVERAL_NODES))

    def _speaks_of(self, pattern: re.Pattern[str]) -> bool:
        return any(pattern.search(line[:500]) for line in self._sample)

    @property
    def numbered(self) -> bool:
        """Each line of a rank begins with its number, so what has none is of no rank."""
        return self.outer in _NUMBERED

    @property
    def srun(self) -> bool:
        return self.outer == "srun"

    def peel(self, line: str) -> Peeled:
        rank, by, stream, line = self._outermost(bare(line))
        if line.startswith("(") and (found := _RAY.match(line)):
            return self._of_actor(found, line[found.end() :])
        if "[" in line[:_BURIED]:
            rank, by, stream, line = self._in_brackets(rank, by, stream, line)
        if "nnodes=" in line and len(self._first_on) < _MANY and (found := _DEEPSPEED.search(line[:400])):
            self._first_on[stream] = int(found[1]) * int(found[2])
        if "global_ranks=[" in line and len(self._first_on) < _MANY and (found := _MET.search(line[:20_000])):
            there = [int(number) for number in found[1].split(",")]
            if there == [*range(there[0], there[0] + len(there))]:
                self._first_on[stream] = there[0]
        if "spawned with command" in line and (found := _SPAWNED.search(line[:2_000])):
            first = self._first_on.get(stream, None if stream or self._speaks_of(_SEVERAL_NODES) else 0)
            if first is not None:
                self._know(f"{found[1]}@{stream}", first + int(found[2]), stream, int(found[1]))
        if "world_rank=" in line or " nranks " in line or "NCCL " in line:
            rank, by, stream = self._of_process(line, rank, by, stream)
        if "WorkerDict_" in line or "n_gpus_per_node" in line:
            self._of_group(line)
        if by == "launcher" and rank is not None and "rank" in line and (own := _IN_TABLE.match(line)):
            self.learn_offset(by, "", int(own[1]) - rank)
        if rank is not None or stream:
            self._seen(rank, by, stream)
        return Peeled(rank, by, line, stream)

    def _of_group(self, line: str) -> None:
        if (found := _PER_NODE.search(line)) is not None:
            self._per_node = int(found[1])
        if (found := _RAY_GROUP.search(line)) is None:
            return
        node, local, pid = map(int, found.groups())
        if node == 0 or local < self._per_node:
            self._know(f"{pid}@", node * self._per_node + local, "", pid)

    def _outermost(self, line: str) -> tuple[int | None, By, str, str]:
        """The label that stands before every line of the file, or the pod."""
        if self.outer and (found := _OUTER[self.outer].match(line)):
            rest = bare(line[found.end() :])
            return (int(found[1]), "launcher", "", rest) if self.outer in _NUMBERED else (None, "host", found[1], rest)
        if " || " in line[:120] and (found := _DETERMINED.match(line)):
            rank = int(found[2]) if found[2] else None
            return rank, "host" if rank is None else "launcher", found[1], line[found.end() :]
        if line.startswith(("(head,", "(worker")) and (found := _SKYPILOT.match(line)):
            return None, "host", found[1], bare(line[found.end() :])
        if line.startswith("[pod/") and (found := _POD.match(line)):
            return None, "host", found[1], bare(line[found.end() :])
        return None, "", "", line

    def _in_brackets(self, rank: int | None, by: By, stream: str, line: str) -> tuple[int | None, By, str, str]:
        head = line[:_BURIED]
        if "<std" in head and (found := _MPIRUN.match(line)):
            rank, by, stream, line = int(found[1]), "launcher", found[2] or stream, line[found.end() :]
        if "/" in head and " [" in head and (found := _TORCHX.match(line)):
            stream, line = f"{found[1]}-{found[2]}", line[found.end() :]
        if line.startswith("[") and (found := self._tee.match(line)):
            rank, by, line = int(found[1]), "tee", line[found.end() :]
            if len(self._local) < _MANY:
                self._local[stream] = max(self._local.get(stream, 0), rank + 1)
        at = line.find("[rank", 0, _BURIED)
        if at >= 0 and (found := _TORCH.match(line, at)):  # behind a time, a pod, a host or a stream
            if by in ("tee", "launcher") and rank is not None:
                self.learn_offset(by, stream, int(found[1]) - rank)
            rank, by, line = int(found[1]), "torch", line[found.end() :]
        elif by in ("", "host") and (said := _said(head)) is not None:
            rank, by = said, "said"
        elif by in ("", "host") and "[Rank " in head and (found := _IN_GROUP.search(line)):
            rank, by = int(found[1]), "group"
            work = found[2]  # a rank that stands in two calls is two ranks, of two groups
            if work and len(self._in_group) < _MANY and self._in_group.setdefault(rank, work) != work:
                self._groups = True
        return rank, by, stream, line

    def _of_actor(self, found: re.Match[str], text: str) -> Peeled:
        """Ray's `(RayTrainWorker pid=324, ip=10.0.0.2) `. A line that Ray held back as repeated comes late: an echo."""
        stream = f"{found[2] or 'raylet'}@{found[3] or ''}"
        if found[1] in _ASIDE:
            return Peeled(None, "echo", text, stream)
        if " [repeated " in text and (repeated := _REPEATED.search(text)):
            return Peeled(None, "echo", text[: repeated.start()], stream)
        if "world_rank=" in text:
            self._of_process(text, None, "", "")
        elif "[rank=" in text and (own := _RAY_SELF.search(text)):
            self._know(stream, int(own[1]), found[3] or "", int(found[2] or 0))
        elif "Error Snippet]:" in text and (snippet := _SNIPPET.search(text)):
            named = ranks_in(snippet[1])
            self._snippet.pop(stream, None)
            if len(named) == 1 and len(self._snippet) < _MANY:
                self._snippet[stream] = named[0]
        elif text.startswith("[FailurePolicy]") or "worker group of size" in text:
            self._snippet.pop(stream, None)
        at = text.find("[rank", 0, _BURIED)
        if at >= 0 and (own := _TORCH.match(text, at)):
            self._know(stream, int(own[1]), found[3] or "", int(found[2] or 0))
            self._seen(int(own[1]), "torch", stream)
            return Peeled(int(own[1]), "torch", text[own.end() :], stream)
        if stream not in self._processes and (said := _said(text[:_BURIED])) is not None:
            self._know(stream, said, found[3] or "", int(found[2] or 0))
        return Peeled(self._snippet.get(stream), "process", text, stream)

    def _of_process(self, line: str, rank: int | None, by: By, stream: str) -> tuple[int | None, By, str]:
        """What Ray's controller or NCCL says of processes and ranks; NCCL's own lines name host and process."""
        if (found := _RAY_RANK.search(line[:500])) is not None:
            self._know(f"{found[2]}@{found[1]}", int(found[3]), found[1], int(found[2]))
        if "NCCL " not in line or (found := _NCCL.match(line)) is None:
            return rank, by, stream
        process = f"{found[2]}@{found[1]}"
        if len(self._devices) < _MANY:
            self._devices[process] = int(found[3])
        if by == "torch" and rank is not None:
            self._know(process, rank, found[1], int(found[2]))
        elif (stated := _NCCL_RANK.search(line[:1_000])) and int(stated[2]) >= self._communicator:
            if int(stated[2]) > self._communicator:  # a smaller communicator counts its own ranks
                self._communicator = int(stated[2])
                self._processes.clear()
                self._by_pid.clear()
            self._know(process, int(stated[1]), found[1], int(found[2]))
        elif not self._communicator and (sends := _NCCL_SENDS.search(line[:500])):
            self._know_sender(process, int(sends[1]), found[1], int(found[2]))
        return (rank, by, stream) if by not in ("", "host") else (None, "process", process)

    def _know_sender(self, process: str, rank: int, host: str, pid: int) -> None:
        """Where no communicator was heard to be made: as it names itself, as long as that is always the same."""
        if self._processes.get(process, rank) == rank:
            self._know(process, rank, host, pid)
        else:
            self._communicator = 1  # there are several, and from now on only the largest counts
            for known in (self._processes, self._by_pid, self.pids, self.hosts):
                known.clear()

    def _know(self, process: str, rank: int, host: str, pid: int) -> None:
        if len(self._processes) < _MANY:
            self._processes[process] = rank
            self._by_pid.setdefault(str(pid), set()).add(rank)
            self.pids[rank] = pid
            if host:
                self.hosts[rank] = host

    def learn_offset(self, by: str, stream: str, offset: int) -> None:
        """How far a node's own numbers are from the job's."""
        for key in {(by, ""), (by, stream)}:
            known = self._offsets.setdefault(key, set())
            if len(known) < _ENOUGH and len(self._offsets) < _MANY:
                known.add(offset)

    def _seen(self, rank: int | None, by: By, stream: str) -> None:
        if rank is not None and by not in ("", "said", "group") and len(self.ranks) < _ENOUGH:
            self.ranks.add(rank)
            if by == "torch":
                self.torch_ranks.add(rank)
        if stream and by in ("torch", "tee", "host", "said", "group") and len(self._in_stream) < _MANY:
            spoken = self._in_stream.setdefault(stream, set())
            if by == "torch" and rank is not None and len(spoken) < _ENOUGH:
                spoken.add(rank)
                if "@" not in stream and len(self.hosts) < _MANY:
                    self.hosts[rank] = stream

    # -- who it was, once everything is read -----------------------------------------------------------------------

    def settle(self) -> None:
        """Ranks of a node have its devices in their order: who is unknown stands beside processes that are known."""
        offsets: dict[str, list[int]] = {}
        for process, rank in self._processes.items():
            if process in self._devices:
                offsets.setdefault(process.rpartition("@")[2], []).append(rank - self._devices[process])
        for process, device in self._devices.items():
            pid, _, host = process.partition("@")
            beside = offsets.get(host, [])
            if process not in self._processes and len(beside) > 1 and len(set(beside)) == 1:
                self._know(process, max(device + beside[0], 0), host, int(pid))

    def whose(self, who: Who, of_file: int | None) -> int | None:
        """`[default3]:` counts ranks of one node, `srun -l torchrun` counts nodes: believed as far as torch agrees."""
        by, rank, stream = who
        if by == "":
            return of_file
        if by in ("said", "group"):
            unsure = by == "group" and of_file is None and (self._groups or self._speaks_of(_MANY_GROUPS))
            return None if unsure else rank if of_file is None else of_file
        if by == "process":
            return rank if rank is not None else self.rank_of_process(stream)
        if by == "host":
            return self._only_rank_of(stream)
        if by == "tee" and stream:
            return self._in_pod(rank or 0, stream)
        return self.global_rank(rank, by)

    def global_rank(self, rank: int | None, by: By) -> int | None:
        offsets = self._offsets.get((by, ""))
        if rank is None or not offsets or offsets == {0}:
            return rank
        if by != "tee" or len(offsets) > 1:
            return None
        offset = next(iter(offsets))
        if 0 < offset < self._local.get("", 0):  # more than there are on the nodes before: they count all ranks
            return rank
        return _believed(rank + offset)

    def _in_pod(self, local: int, stream: str) -> int | None:
        """On a node whose name stands before the line: as torch's prefix there says, else by the pod's number."""
        offsets = self._offsets.get(("tee", stream))
        if offsets:
            return _believed(local + next(iter(offsets))) if len(offsets) == 1 else None
        if len(self._local) < 2:
            return self.global_rank(local, "tee")
        nodes = pod_ranks(self._local)
        if self._offsets or set(nodes) != set(self._local) or len(set(self._local.values())) > 1:
            return None
        return _believed(nodes[stream] * self._local[stream] + local)

    def _only_rank_of(self, stream: str) -> int | None:
        """The one rank that speaks there; where torch has named nobody at all, the pod's number."""
        spoken = self._in_stream.get(stream, set())
        if spoken or self.torch_ranks or self._local:
            return next(iter(spoken)) if len(spoken) == 1 and stream not in self._local else None
        alone = self.outer not in ("host", "bracket") and self.on_a_node == 1
        return pod_ranks(self._in_stream).get(stream) if alone else None

    def is_helper(self, who: Who) -> bool:
        """A Ray actor beside the training workers: its controller logs what it survives, and repeats what they said."""
        return who[0] == "process" and bool(self._processes) and self.whose(who, None) is None

    def rank_of_process(self, process: str) -> int | None:
        """By `pid@host`; where the host is not written, the process must be the only one of its number."""
        if process in self._processes or not process.endswith("@"):
            return self._processes.get(process)
        found = self._by_pid.get(process[:-1], set())
        return next(iter(found)) if len(found) == 1 else None

    def rank_on_node(self, local: int, stream: str) -> int | None:
        """As DeepSpeed's launcher has numbered the nodes, or torchrun's agents when they met."""
        first = self._first_on.get(stream)
        return None if first is None else _believed(first + local)

    def host_of(self, who: Who, rank: int | None) -> str | None:
        if rank is not None and rank in self.hosts:
            return self.hosts[rank]
        stream = who[2]
        return (stream.rpartition("@")[2] if "@" in stream else stream) or None

    def rank_of_file(self, rank: int | None) -> int | None:
        """The rank that a path names, unless the lines know better: another rank, or several, so it is nobody's."""
        if rank is None or len(self.ranks) > 1 or self.of_launcher:
            return None
        return next(iter(self.torch_ranks)) if self.torch_ranks else rank


def _believed(rank: int) -> int | None:
    return max(rank, 0) if rank <= MAX_WORLD_SIZE else None


def _labels(kind: str, lines: Sequence[str]) -> bool:
    """Whether nearly every line of the sample begins with a label of this kind; but for the frames of a stack, which
    belong to the line before."""
    lines = [line for line in lines if not _FRAME.match(line)]
    label = _OUTER[kind]
    if lines and not any(map(label.match, lines[: len(lines) // 10 + 1])):
        return False  # more than a tenth has none
    found = [hit for line in lines if (hit := label.match(line))]
    if len(found) < 0.9 * len(lines):
        return False
    labels = [hit[1] for hit in found]
    if kind in _NUMBERED:
        numbered = all(int(a) < int(b) for a, b in pairwise(labels))
        return not numbered and (kind == "srun" or len(set(labels)) > 1)
    names = set(labels)
    if kind == "bracket" and len(names) < 2:
        return False
    if kind == "stern" and (len({hit[0].split()[1] for hit in found}) > 2 or not pod_ranks(names).keys() >= names):
        return False
    return len(names) <= max(len(lines) // 2, 1) and all(
        _HAS_NUMBER.search(name) and not name.isdigit() for name in names
    )


def pod_ranks(names: Iterable[str]) -> dict[str, int]:
    """`train-worker-3`, `train-3`, `train-node-0-3-x7k2p`: the number; beside a master the first worker is rank 1."""
    numbers: dict[str, int] = {}
    workers: list[str] = []
    master = False
    for name in names:
        found = _POD_NAME.search(name)
        if found is None or found[1] in _NO_WORKER:
            continue
        numbers[name] = int(found[2])
        if found[1] in ("master", "chief"):
            master = True
        else:
            workers.append(name)
    if master:
        numbers.update({name: numbers[name] + 1 for name in workers})
    return numbers if len(set(numbers.values())) == len(numbers) else {}


def ranks_in(text: str) -> list[int]:
    """`0,1,7` as Ray lists the ranks that failed alike."""
    return [int(part) for part in text.replace(" ", "").split(",") if part.isdigit() and len(part) <= 6]


def snippet_ranks(header: str) -> list[int]:
    """Ray quotes the ranks' tracebacks under `[Rank 0,1 Error Snippet]:`."""
    found = _SNIPPET.search(header) if "Error Snippet]:" in header else None
    return ranks_in(found[1]) if found else []


def _said(head: str) -> int | None:
    """`[2026-…] [INFO] [logging.py:96:log_dist] [Rank 0] …`: a program's own tag; a process group's rank is another."""
    if not any(tag in head for tag in _TAGS):
        return None
    found = _SAID.match(head)
    return int(found[1]) if found and "ProcessGroup" not in head else None


def glued(text: str) -> int:
    """Where another rank's message begins on the same line: two processes wrote without a newline between them."""
    found = _GLUED.search(text, 1) if "[rank" in text else None
    return found.start() if found else -1


def unwrapped(before: Sequence[str], text: str, after: Sequence[str]) -> str:
    """A message that rich's log handler has broken into its column, as ColossalAI's logger does, in one line again."""
    pieces = [text]
    if not _RICH.match(text):
        for line in reversed(before):
            pieces.insert(0, line)
            if not line.startswith(_COLUMN) or _RICH.match(line):
                break
        if not _RICH.match(pieces[0]):
            return text
    for line in after:
        if not line.startswith(_COLUMN) or _RICH.match(line):
            break
        pieces.append(line)
    return " ".join([pieces[0].rstrip(), *(piece.strip() for piece in pieces[1:])])


def may_be_wrapped(text: str) -> bool:
    return text.startswith(_COLUMN) or (text[:1] == "[" and _RICH.match(text) is not None)


def bare(line: str) -> str:
    """Without what Docker and Kubernetes wrap around a line: JSON, a time, the stream's name."""
    if line.startswith('{"log":"'):
        line = _from_json(line)
    if line.startswith("20") and line[10:11] == "T" and (found := _STAMP.match(line)):
        return line[found.end() :]
    return line


def _from_json(line: str) -> str:
    try:
        text = json.loads(line)["log"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return line
    return plain(text.rstrip("\r\n").rsplit("\r", 1)[-1]) if isinstance(text, str) else line


def plain(line: str) -> str:
    """Without colour codes and other terminal sequences."""
    return _ANSI.sub("", line) if "\x1b" in line else line

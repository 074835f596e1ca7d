"""Which rank is on which host and GPU, as launchers and programs say it in a log's first lines."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

from paramedic.collect.guarded import shape
from paramedic.collect.identity import MAX_WORLD_SIZE
from paramedic.collect.layouts import ranks_in
from paramedic.collect.pods import BEGUN, begun
from paramedic.model import Fact, Source
from paramedic.regex import regex

_MOST = 4_096
ITSELF_A_TASK = "itself"
"""Of a job array, instead of its number."""
_HOST = r"(?P<host>[A-Za-z][\w.-]{0,60}\d[\w.-]{0,40})"
_RANK = (
    r"(?<!local[ _-])(?<!node[ _-])(?<!group[ _-])\b(?:SLURM_PROCID|(?:global[ _-]?)?rank)[=: ]{1,2}(?P<rank>\d{1,6})\b"
)
_TOGETHER = (
    regex(rf"\bhost(?:name)?[=: ]{{1,2}}{_HOST}\b.{{0,40}}?{_RANK}", re.I),
    regex(rf"{_RANK}.{{0,80}}?\b(?:on(?: (?:host|node))?|host(?:name)?[=:]|node(?:name)?[=:]) ?{_HOST}", re.I),
)
_AT_HEAD = (
    regex(rf"(?:^|>: ?){_HOST}[ :,|]{{1,3}}(?:hvd |byteps )?{_RANK}(?:/| of )\d", re.I),
    regex(rf"(?:^|[>:\]] ?){_HOST}[ :,|]{{1,3}}{_RANK}[ ,|]{{1,3}}local[_ ]?rank[ =:]{{1,2}}\d", re.I),
    regex(
        r"(?:^|>: ?)(?P<host>[A-Za-z][\w.-]{0,60})[ :,|]{1,3}pid[ =:]\d{1,10}[ ,|]{1,3}(?:hvd |byteps )?" + _RANK, re.I
    ),
)
"""`gpu03 rank 7/16` or `gpu03 rank=7 local_rank=3` at the head of a line, behind nothing but a launcher's prefix."""
_OWN_RANK = (
    r"(?<!local[ _-])(?<!node[ _-])(?<!group[ _-])(?<!lora[ _-])\brank[ =:_#]{0,2}(?P<rank>\d{1,6})"
    r"(?: ?(?:/|of) ?\d{1,6})?"
)
_APART = r"[\s,;|()\[\]:-]{1,5}"
_BESIDE = (
    r"(?:(?:(?:local|node|group)[ _]?rank|world(?:[ _]?size)?|size|local|host(?:name)?|node|device|gpu|cuda)[ =:]{1,2}"
    rf"\S{{1,40}}?{_APART}){{0,4}}"
)
_PROCESS = (
    regex(rf"{_OWN_RANK}{_APART}{_BESIDE}(?:process id|pid)[ =:]{{1,3}}(?P<pid>\d{{2,10}})\b", re.I),
    regex(rf"\bpid[ =:]{{1,3}}(?P<pid>\d{{2,10}})[\s,;|\[\]:-]{{1,5}}{_BESIDE}(?:global[ _])?{_OWN_RANK}\b", re.I),
)
"""Each rank's process, as programs announce themselves: with nothing but other names for who they are in between."""
_CUDA = regex(
    rf"{_OWN_RANK}{_APART}{_BESIDE.replace('|device|gpu|cuda', '|pid')}(?:(?:is )?(?:on|using|uses|->|=>) )?"
    r"(?:(?:device|gpu)[ =:#]{1,3}(?:cuda:)?|cuda:)(?P<cuda>\d{1,3})\b(?![.:])",
    re.I,
)
"""And its GPU, by the number that CUDA gives it."""
_VISIBLE = regex(
    r"(?:^\[(?P<label>\d{1,6})\]:? |^(?P<task>\d{1,6}): |"
    r"(?<!local[ _-])(?<!node[ _-])(?<!group[ _-])\b(?:SLURM_PROCID|(?:global[ _-]?)?rank)[ =:#]{0,2}"
    r"(?P<rank>\d{1,6})\b)"
    r"[^\n]{0,160}?\b(?:CUDA|HIP|ROCR)_VISIBLE_DEVICES['\"]?[=:] ?['\"]?(?P<gpus>\d{1,3}(?:,\d{1,3}){0,31})(?![\w-])",
    re.I,
)
"""Which GPUs a rank was shown, as programs and wrappers print it."""
_DEEPSPEED = regex(r"WORLD INFO DICT: \{(.{1,20000})\}")
_SLOTS = regex(r"'([\w.-]{1,120})': \[([\d, ]{0,400})\]")
_WORLD_INFO = regex(r"--world_info[= ]([\w=-]{8,16000})")
"""The same, as DeepSpeed's runner hands it to each node."""
_SPAN = regex(
    r"\branks? {1,4}(?P<first>\d{1,6}) ?(?:-|\.\.) {0,4}(?P<last>\d{1,6})(?: of \d{1,6})?[ :]{1,4}"
    r"(?:on (?:host |node )?|(?:host|node)[=: ]{1,2})" + _HOST,
    re.I,
)
_SPANNED = regex(
    r"(?<![\w.-])(?!(?:step|epoch|iter\w{0,6}|stage|pipeline|gpu|cuda|device|[tpdce]p|v?pp|group|layer|attempt|phase"
    r"|round|shard|replica|rank|world)[-_]?\d)"
    rf"{_HOST}[\s:,=(|>-]{{1,20}}(?:global[ _-]?)?ranks[ =:]{{1,4}}"
    r"(?P<first>\d{1,6}) ?(?:-|\.\.|to) ?(?P<last>\d{1,6})\b",
    re.I,
)
_INTEL = regex(
    r"MPI startup\(\): (?P<rank>\d{1,6}) {1,12}(?P<pid>\d{2,10}) {1,12}(?P<host>[A-Za-z][\w.-]{0,100}) {1,80}[{\d]"
)
"""Intel MPI's table of its processes, with I_MPI_DEBUG=4 and above."""
_HOSTFILE = regex(
    r"(?P<host>[A-Za-z][\w.-]{0,100}) {1,20}slots ?= ?(?P<slots>\d{1,4})(?: {1,4}max[-_]slots ?= ?\d{1,4})? *$"
)
_HOSTS = regex(
    r"\b(?:mpirun|mpiexec|prterun|horovodrun)\b[^\n]{0,2000}? (?:-H|--?hosts?)[ =]"
    r"(?P<hosts>[A-Za-z][\w.-]{0,100}:\d{1,4}(?:,[A-Za-z][\w.-]{0,100}:\d{1,4}){0,1000})(?: |$)"
)
"""How many processes Open MPI and Horovod may start on each host, in the order in which they fill them."""
_MAPPED = regex(r" (?:-bynode\b|--?(?:map|rank)-by {1,2}(?P<how>node|seq|ppr:\d{1,4}:\w{1,10})\b)")
_ITSELF = ("localhost", "slots")
_LISTED = regex(rf"\s{{0,8}}(?P<first>\d{{1,6}})(?:-(?P<last>\d{{1,6}}))?[\s:,]{{1,8}}{_HOST}\s*$")
_HEADING = regex(r"\brank\b.{0,20}(?:->|:|=|to).{0,12}\b(?:host|node)", re.I)
_SOME_HOSTS = r"[A-Za-z][\w-]{0,60}(?:\[\d{1,6}(?:[-,]\d{1,6}){0,200}\])?"
_SLURM = regex(rf"(?:^|[\s='\"])((?:{_SOME_HOSTS},){{0,64}}{_SOME_HOSTS})(?=,?(?:$|[\s'\"]))")
_ITEM = regex(r"([A-Za-z][\w-]{0,60})(?:\[([\d,-]{1,1400})\])?(?:,|$)")
_SEVERAL_OF = regex(r"\[\d{1,6}[-,]")
_PER_NODE = regex(r"\bnproc[-_]per[-_]node[= ]{1,2}(\d{1,4})\b")
_TASKS_EACH = regex(r"\bn?tasks[-_]per[-_]node[= ]{1,2}(\d{1,4})\b", re.I)
_NCCL_GPU = regex(
    r"(?P<host>[\w.-]{1,120}):\d{1,10}:\d{1,10} \[-?\d{1,3}\] NCCL INFO .{0,120}?"
    r"\brank (?P<rank>\d{1,6}) nranks (?P<size>\d{1,6}) cudaDev (?P<device>\d{1,3})(?: nvmlDev \d{1,3})?"
    r" busId (?P<bus>[0-9a-f]{4,16})\b"
)
_SMI_GPU = regex(
    r"\|? {0,6}(?P<index>\d{1,2})(?:,| {1,4}\S).{0,60}?\b[0-9A-Fa-f]{4,8}:(?P<bus>[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})\.0\b"
)
_NODE_RANK = regex(r"--(?:node|machine)[-_]rank[= ]{1,2}(\d{1,5})\b")
_PROCESSES = regex(r"--num[-_]processes[= ]{1,2}(\d{1,6})\b")
_MACHINES = regex(r"--(?:num[-_]machines|nnodes)[= ]{1,2}(\d{1,5})\b")
_FAILED_THERE = regex(r"failed to run .{1,2000}? on ([\w.-]{1,120}), is localhost")
"""How Colossal-AI's launcher tells of a node."""
_BRIDGE = regex(
    r"(?P<host>[\w.-]{1,120}):\d{1,10}:\d{1,10} \[-?\d{1,3}\] NCCL INFO (?:Bootstrap|NET/Socket) ?: Using (?:\[0\])?"
    r"(?:docker\d{1,3}|br-[0-9a-f]{12}|virbr\d{1,3}|lxcbr\d|cni\d{1,3}|podman\d|lo|veth\w{1,12}):(?P<address>[\d.]{7,15})<"
)
"""An interface behind which only the host itself is."""
_LAUNCH = regex(r"\bnnodes=\d{1,6}, num_local_procs=(\d{1,5}), node_rank=(\d{1,5})\b")
_COORDINATES = " is now connecting to cluster with cluster_spec: "
"""What TensorFlow's parameter server strategy says in the process that hands out the work."""
_MET = regex(r"\bglobal_ranks=\[([\d, ]{1,20000})\]")
_MET_BY_ROLE = regex(r"\brole_ranks=\[([\d, ]{1,20000})\]")
"""Within their role, which is the only one of nearly every job."""
_BEFORE = regex(r"\[pod/([\w.-]{1,253})[/\]]|([A-Za-z0-9][\w.-]{0,100}): ")
_OF_NAME = regex(r"\.(?:log|txt|out|err)\b")
_SPEAKS_OF_NODES = regex(r"node|\bon\b|host|[A-Z]{4,}", re.I)


_OFTEN = 8
"""So many lines that differ only in their numbers said nothing: neither will the others, as those of training."""


def roster(lines: Sequence[str], source: Source) -> Iterator[Fact]:
    """`host` of a rank each; `nodelist` is all hosts of a job in Slurm's order; `gpu` of a rank, as `host bus size`
    with the size of the group in which it has its number, and `device`, as `host index size`; `gpu index`, as `bus
    index`; `pid` and `cuda` of a rank, as numbers; `visible`, the GPUs that it was shown; `tasks on a node`;
    `node`, as `host number processes`; `place`, as `host number`; `bridge` is the address that NCCL gives out on a
    host though nobody else can reach it, as `host address`; `slots` of a host in the launcher's order, as `host
    number`, and `mapped`, where processes are dealt out otherwise; `ranks on a node`, where the same command starts all
    nodes; `coordinator`, where the log is that of a process which hands out the work to all ranks, and is none itself;
    `pod on`, as `pod node`; `pod begun`, when and how often; `array`, the number of a Slurm job of which each
    task is a job of its own, or `itself` in the log of such a task."""
    stated: set[tuple[str, str | int, int | None]] = set()
    of_file = source.host or _OF_NAME.split(source.id.rsplit("/", 1)[-1], maxsplit=1)[0]
    heading = False
    columns = _NO_TABLE
    silent: Counter[bytes] = Counter()
    described = ""
    whole = _whole_list(lines)
    met = _MET if any("global_ranks=[" in line for line in lines) else _MET_BY_ROLE
    for number, line in enumerate(lines, 1):
        listed = _spanned(_LISTED.match(line[:200])) if heading else []
        heading = bool(listed) or ("rank" in line and _HEADING.search(line[:200]) is not None)
        row = _row(line[:400], columns)
        columns = columns if row else _columns(line) if _HEADS.search(line[:400]) else _NO_TABLE
        described = _described(line, described)
        said: list[tuple[str, str | int, int | None]] = [*listed, *(whole if number == 1 else ()), *row]
        if described.count(" ") == 1:
            said.append(("pod on", described, None))
        alike = shape(line)
        if silent[alike] < _OFTEN:
            by_itself: tuple[tuple[str, str | int, int | None], ...] = (
                *_met(line[:20_000], of_file, met),
                *_slots(line[:20_000]),
                *_asked(line[:4_000], of_file),
                *_said(line[:20_000]),
                *_announced(line[:300]),
                *_of_array(line[:400]),
                *((BEGUN, row, None) for row in begun(line)),
                *_shown(line[:400]),
            )
            said += by_itself
            silent[alike] += -_MOST if by_itself else 1
        for name, value, rank in said:
            if (name, value, rank) not in stated and len(stated) < _MOST:
                stated.add((name, value, rank))
                yield Fact(name, value, source.id, number, rank)


_DESCRIBED = regex(r"(Name|Node): {2,20}([a-z0-9][a-z0-9.-]{0,252})(?:/[\d.:a-f]{3,40})?\s*$")


def _described(line: str, before: str) -> str:
    """What `kubectl describe pod` has told of so far: its name, then its name and its node."""
    found = _DESCRIBED.match(line[:400])
    if found is None:
        return before.partition(" ")[0]
    return found[2] if found[1] == "Name" else f"{before} {found[2]}" if before else ""


def _shown(line: str) -> Iterator[tuple[str, str, int | None]]:
    if "_VISIBLE_DEVICES" in line and (found := _VISIBLE.search(line)) is not None:
        rank = int(next(found[name] for name in ("label", "task", "rank") if found[name]))
        yield "visible", found["gpus"], rank


_ARRAY_ROW = regex(
    r"\s{0,12}(\d{2,12})_(?:\d{1,6}|\[[\d,%-]{1,200}\])(?:\.\w{1,12})?[|\s].{0,300}?"
    r"\b(?:COMPLETED|COMPLETING|RUNNING|PENDING|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_ME|PREEMPTED|REQUEUED|R|PD|CG)\b"
)
_ARRAY_JOB = regex(r"\b(?:ArrayJobId|SLURM_ARRAY_JOB_ID)=(\d{2,12})\b")
_ARRAY_TASK = regex(r"\b(?:SLURM_ARRAY_TASK_ID ?[=:] ?|array[ _-]task(?:[ _-]id)?[ =:#]{1,3})\d{1,6}\b", re.I)


def _of_array(line: str) -> Iterator[tuple[str, str, int | None]]:
    """As sacct, squeue and scontrol tell of a job array, and as its tasks say themselves."""
    row = _ARRAY_ROW.match(line) if "_" in line else None
    if (found := row or (_ARRAY_JOB.search(line) if "rray" in line or "ARRAY" in line else None)) is not None:
        yield "array", found[1], None
    elif "rray" in line.lower() and _ARRAY_TASK.search(line) is not None:
        yield "array", ITSELF_A_TASK, None


def processes_on_a_node(lines: Sequence[str]) -> int:
    """What the launcher in a log was asked to start, or says that it has started; 1 where nothing is said."""
    asked = {int(found[1]) for line in lines if "nproc" in line and (found := _PER_NODE.search(line[:4_000]))}
    if not asked:
        spawned = [line for line in lines if "spawned with command: [" in line and _SPAWNED.search(line[:4_000])]
        return max(len(spawned), 1)
    return asked.pop() if len(asked) == 1 else 1


_SPAWNED = regex(r"\bprocess \d{1,10} spawned with command: \[.{0,2000}--local_rank=\d")
"""DeepSpeed's launcher, once for each of its processes."""


def _met(line: str, of_file: str, met: re.Pattern[str]) -> Iterator[tuple[str, str, int | None]]:
    """torchrun's agent on each node, once all have met: `global_ranks=[8, 9]`; DeepSpeed's, when it starts its own."""
    if "_ranks=[" in line and (found := met.search(line)) is not None:
        yield from (("host", _before(line) or of_file, rank) for rank in ranks_in(found[1])[:_MOST])
    elif _COORDINATES in line:
        yield "coordinator", "tensorflow", None
    elif "num_local_procs=" in line and (found := _LAUNCH.search(line)) is not None:
        yield "node", f"{_before(line) or of_file} {found[2]} {found[1]}", None


def _slots(line: str) -> Iterator[tuple[str, str, int | None]]:
    """Open MPI's hostfile, or what it and Horovod were asked for."""
    if "slots" in line and (found := _HOSTFILE.match(line)) is not None and found["host"] not in _ITSELF:
        yield "slots", f"{found['host']} {int(found['slots'])}", None
    elif "run " in line or "mpiexec" in line:
        if (found := _HOSTS.search(line)) is not None:
            pairs = [entry.rpartition(":") for entry in found["hosts"].split(",")]
            yield from (("slots", f"{host} {int(slots)}", None) for host, _, slots in pairs if host not in _ITSELF)
        if (how := _MAPPED.search(line)) is not None:
            yield "mapped", how["how"] or "node", None


def _before(line: str) -> str:
    """The host or pod whose label the line carries."""
    where = _BEFORE.match(line)
    return (where[1] or where[2]) if where else ""


def _asked(line: str, of_file: str) -> Iterator[tuple[str, str, int | None]]:
    """A launcher's command on one of several nodes: which one it is, and how many processes each has."""
    if "-" not in line:
        return
    if (at := _NODE_RANK.search(line)) is None:
        if "nproc" in line and (alone := _PER_NODE.search(line)) is not None:
            yield "ranks on a node", alone[1], None
        return
    if line.startswith("[pod/"):
        of_file = _before(line) or of_file
    if (there := _FAILED_THERE.search(line)) is not None:
        of_file = there[1]
    each, processes, machines = _PER_NODE.search(line), _PROCESSES.search(line), _MACHINES.search(line)
    if each is None and processes and machines and int(machines[1]) and int(processes[1]) % int(machines[1]) == 0:
        yield "node", f"{of_file} {at[1]} {int(processes[1]) // int(machines[1])}", None
    elif each is not None:
        yield "node", f"{of_file} {at[1]} {each[1]}", None


def _spanned(found: re.Match[str] | None) -> list[tuple[str, str, int | None]]:
    """`0-7 node-3`, one a line, or in a sentence."""
    if found is None:
        return []
    ranks = range(int(found["first"]), min(int(found["last"] or found["first"]), MAX_WORLD_SIZE) + 1)[:_MOST]
    return [("host", found["host"], rank) for rank in ranks]


_RANK_COLUMNS = ("GLOBALID", "SLURM_PROCID", "PROCID", "GLOBAL_RANK", "RANK")
_INDEX_COLUMNS = ("JOB_COMPLETION_INDEX", "COMPLETION_INDEX", "NODE_RANK", "GROUP_RANK")
_SEVERAL_WORDS = frozenset(("STARTED", "CMD", "COMMAND", "START", "TIME"))
_TABLES = (("pid", ("PID",), _RANK_COLUMNS), ("place", ("NODE", "HOST", "HOSTNAME"), _INDEX_COLUMNS))
_Columns = tuple[str, int, int]
_HEADS = regex(r"\bPID\b|_INDEX\b|_RANK\b")
_NO_TABLE: _Columns = ("", -1, -1)


def _columns(line: str) -> _Columns:
    """Where a process and its rank stand in a table, as `scontrol listpids` or a ps with such a column heads it, or a
    node and its number, as `kubectl get pods -o custom-columns`. What is of several words, as a start time is, must not
    stand before them."""
    names = line[:400].split()
    for what, keys, numbers in _TABLES:
        key = next((names.index(name) for name in keys if name in names), -1)
        number = next((names.index(name) for name in numbers if name in names), -1)
        if min(key, number) >= 0 and _SEVERAL_WORDS.isdisjoint(names[: max(key, number)]):
            return what, key, number
    return _NO_TABLE


def _row(line: str, columns: _Columns) -> list[tuple[str, str | int, int | None]]:
    what, *at = columns
    words = line.split() if what else []
    if len(words) <= max(at) or not what:
        return []
    key, number = (words[place] for place in at)
    if not number.isdecimal() or len(number) > 6:
        return []
    if what == "place":
        return [("place", f"{key[:120]} {int(number)}", None)] if _A_HOST.fullmatch(key[:120]) else []
    return [("pid", int(key), int(number))] if key.isdecimal() and len(key) <= 10 else []


_A_HOST = regex(r"[A-Za-z0-9][\w.-]{0,119}")
_BLOCK = regex(rf"{_HOST}[\s:,]{{1,8}}(?P<first>\d{{1,6}})-(?P<last>\d{{1,6}})\s*$")
_ONE_HOST = regex(rf"{_HOST}\s*$")


def _whole_list(lines: Sequence[str]) -> list[tuple[str, str, int | None]]:
    """A file that is nothing but hosts, one a line, as `scontrol show hostnames` prints them, or each with its ranks,
    `node-03 24-31`, which then count all of them once."""
    rows = [line.strip() for line in lines if line.strip() and not line.startswith("#")][: _MOST + 1]
    if not 1 < len(rows) <= _MOST:
        return []
    blocks = [found for row in rows if (found := _BLOCK.match(row[:200]))]
    if len(blocks) == len(rows):
        ends = [(int(found["first"]), int(found["last"])) for found in blocks]
        follow = ends[0][0] == 0 and all(one[1] + 1 == after[0] for one, after in pairwise(ends))
        return list(islice((row for found in blocks for row in _spanned(found)), _MOST)) if follow else []
    hosts = [found["host"] for row in rows if (found := _ONE_HOST.match(row[:120]))]
    stems = {re.split(r"\d", host, maxsplit=1)[0] for host in hosts}
    alike = len(hosts) == len(rows) == len(set(hosts)) and len(stems) == 1
    return [("nodelist", ",".join(hosts), None)] if alike else []


def _dealt(line: str) -> dict[str, int]:
    """How many processes DeepSpeed starts on each host, in its order."""
    if "WORLD INFO DICT" in line and (dict_ := _DEEPSPEED.search(line)) is not None:
        return {host: gpus.count(",") + 1 for host, gpus in _SLOTS.findall(dict_[1])}
    if "--world_info" in line and (coded := _WORLD_INFO.search(line)) is not None:
        try:
            told = json.loads(base64.urlsafe_b64decode(coded[1]))
        except (ValueError, RecursionError):
            return {}
        if isinstance(told, dict) and all(isinstance(slots, list) for slots in told.values()):
            return {host[:120]: len(slots) for host, slots in told.items()}
    return {}


def _said(line: str) -> Iterator[tuple[str, str, int | None]]:
    if dealt := _dealt(line):
        slots = [host for host, count in dealt.items() for _ in range(min(count, _MOST))]
        yield from (("host", host, rank) for rank, host in enumerate(slots[:_MOST]))
        return
    span = _SPAN.search(line[:500]) if "rank" in line and "-" in line else None
    span = _SPANNED.search(line[:500]) if span is None and "ranks" in line else span
    if span is not None:
        yield from _spanned(span)
        return
    if "busId " in line and (gpu := _NCCL_GPU.search(line)) is not None:
        yield "gpu", f"{gpu['host']} {_as_nvidia_writes(gpu['bus'])} {gpu['size']}", int(gpu["rank"])
        yield "device", f"{gpu['host']} {gpu['device']} {gpu['size']}", int(gpu["rank"])
        return
    if "MPI startup" in line and (process := _INTEL.search(line[:500])) is not None:
        yield "host", process["host"], int(process["rank"])
        return
    if ": Using " in line and (bridge := _BRIDGE.search(line)) is not None:
        yield "bridge", f"{bridge['host']} {bridge['address']}", None
        return
    if ".0" in line and (gpu := _SMI_GPU.match(line)) is not None:
        yield "gpu index", f"{gpu['bus'].lower()} {int(gpu['index'])}", None
        return
    low = line[:500].casefold()
    if ("rank" in low or "procid" in low) and any(word in low for word in ("host", "node", " on ")):
        found = next((hit for pattern in _TOGETHER if (hit := pattern.search(line[:500])) is not None), None)
        if found is not None:
            yield "host", found["host"].rstrip("."), int(found["rank"])
    elif "rank" in low and (found := next((hit for p in _AT_HEAD if (hit := p.search(line[:200]))), None)) is not None:
        yield "host", found["host"], int(found["rank"])
    if "[" in low and _SEVERAL_OF.search(line[:2_000]) and _SPEAKS_OF_NODES.search(line[:500]):
        listed = next((hit[1] for hit in _SLURM.finditer(line[:2_000]) if _SEVERAL_OF.search(hit[1])), "")
        names = list(islice(all_of(listed), _MOST))
        if len(names) > 1:
            yield "nodelist", ",".join(names), None
    if "tasks" in low and (tasks := _TASKS_EACH.search(line[:2_000])) is not None:
        yield "tasks on a node", tasks[1], None


def _announced(line: str) -> Iterator[tuple[str, int, int | None]]:
    low = line.casefold()
    if "rank" not in low:
        return
    if "pid" in low or "process id" in low:
        found = next((hit for pattern in _PROCESS if (hit := pattern.search(line)) is not None), None)
        if found is not None:
            yield "pid", int(found["pid"]), int(found["rank"])
    if ("cuda:" in low or "device" in low or "gpu" in low) and (found := _CUDA.search(line)) is not None:
        yield "cuda", int(found["cuda"]), int(found["rank"])


def _as_nvidia_writes(number: str) -> str:
    """NCCL has bus, device and function as one number: `ab000` is ab:00.0."""
    return f"{number[:-3][-2:]:0>2}:{number[-3:-1]}"


def all_of(listed: str) -> Iterator[str]:
    """Of `gx[12-14,21],hx3` as of `gx[12-14]`."""
    for item in _ITEM.finditer(listed):
        yield from _expanded(item[1], item[2]) if item[2] else (item[1],)


def _expanded(prefix: str, ranges: str) -> Iterator[str]:
    """As `scontrol show hostnames` does: `nid005[101-103,107]`."""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield f"{prefix}{number:0{len(first)}d}"

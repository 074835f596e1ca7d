"""Where ranks were: the host and the process of each, from whatever said so, and whom a message about a host means."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import islice

from paramedic.detect import given_out, numbering, pods, ras
from paramedic.detect.hostnames import in_order, parts_of_name, short
from paramedic.detect.once import once
from paramedic.detect.places import LACKING, NCCL_PROCESS, Places, at_ranks, rank_by_nccl
from paramedic.detect.ranks import MOST_TASKS, counted
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_WORD = regex(r"[A-Za-z0-9][\w.-]{0,120}")
_BUS = regex(r"[0-9A-Fa-f]{4,8}:([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.|$)")
_OF_NCCL = regex(r"(\S{1,120}) ([0-9a-f]{2}:[0-9a-f]{2}) (\d{1,6})")
_OF_SMI = regex(r"([0-9a-f]{2}:[0-9a-f]{2}) (\d{1,2})")
_OF_GPU = regex(r"[( ]GPU (\d{1,2})[; ]")
_BY_DRIVER = regex(r"\bRPC response from GPU(\d{1,2}) GSP!")
"""The driver counts GPUs as they stand on the bus, and a node full of ranks gives each one in this order."""
_ON_ONE_NODE = 8
_HEAD = 80  # so far into a line of progress a program names its host
_NOT_THE_ONE = regex(r"\bON \S{1,120} CANCELLED")
"""Slurm names the first node of a job that it cancels, whichever it lost."""
_LOADER_WORKER = regex(r"DataLoader worker \(pid (\d{1,10})\) ")
_DESCRIBED = regex(r"\s{0,12}(?:Message|Status|Reason|Last State):\s")
"""Lines of `kubectl describe`, whose file is about one pod."""
_OWN_END = regex(r"death signal|\bSIGTERM\b")
"""An agent that is told to end speaks of itself."""
_CLOSURE = regex(
    r"/job:worker(?:/replica:\d{1,4})?/task:(\d{1,6}) encountered the following error"
    r" when processing (?:resource )?closure"
)
_BOX = regex(r"= {1,6}RANK (\d{1,6}) PID \d{1,10} RUNNING AT \S")
_CRASHED = regex(r"= {1,6}KILLED BY SIGNAL: (?:4|7|8|11) \(")
_OF_TWO = regex(r"\brank \d{1,6} and rank \d{1,6} both on\b")
"""Whoever says it has it in common with another."""
_NODE_GONE = regex(
    r"\b(?:its|the actor's) node (?:has died|was terminated)|\bSpotInterruption\b|\bNodeShutdown\b|\bpreempted\b"
)
_OF_MACHINE = regex(r"\bip: (\d{1,3}(?:\.\d{1,3}){3})\b|\bip-(\d{1,3}(?:-\d{1,3}){3})\b")
"""As Ray writes it, and as Amazon names its machines by it."""
_NODE_FAILED = regex(r"\bNode failure on ([\w.-]{1,120})\s*$")
_MISSED = ("collective-hang", "communication-runtime-error")
_OF_NODES = ("worker-or-node-loss", "rendezvous-setup-failure")
_OF_PROCESSES = ("accelerator-fault", "host-out-of-memory", "native-crash", "device-out-of-memory")
_OF_FILES = (
    "path-or-permission-error",
    "import-or-missing-symbol",
    "build-or-install-failure",
    "unsupported-api-or-attribute",
    "data-pipeline-failure",
    "device-placement-error",
    *_OF_PROCESSES,
)
"""What goes wrong within one host, so that its file is enough to say where."""


@once
def places(run: Run) -> Places:
    hosts: dict[str, set[int]] = defaultdict(set)
    pids: dict[int, set[int]] = defaultdict(set)

    def note(rank: int | None, host: object = "", pid: object = None) -> None:
        if rank is None:
            return
        if host:
            hosts[short(str(host))].add(rank)
        if isinstance(pid, int):
            pids[pid].add(rank)

    for fact in run.facts:
        if fact.name in ("host", "pid"):
            note(fact.rank, fact.value if fact.name == "host" else "", fact.value if fact.name == "pid" else None)
    of_file = {source.id: source.rank for source in run.sources}
    for who, host in dict.fromkeys((event.rank, event.host) for event in run.events if event.host):
        note(who, host)
    for event in run.of_kind("exit"):
        note(event.rank, event.fields.get("host"), event.fields["pid"])
    for name, who in _left_by_srun(run):
        note(who, name)
    for event, name, pid in _nccls(run):
        note(of_file.get(event.source) if event.rank is None else event.rank, name, pid)
    for event in run.of_kind("traceback"):
        if found := _LOADER_WORKER.search(event.text):
            note(event.rank, pid=int(found[1]))  # the kernel speaks of it by this number
    for rank, name, of_rank in _whose_output(run):
        note(rank, name, of_rank)
    for process, rank in ras.rank_of_process(run).items():
        note(rank, pid=process)
    _by_their_own_words(run, hosts)
    numbering.as_told(run, hosts)
    gpus = _gpus(run, hosts)
    numbering.as_others(run, hosts)
    ranks_on = {host: frozenset(ranks) for host, ranks in hosts.items()}
    return Places(ranks_on, pids, gpus, pods.counted(run), numbering.ranks_on_each(hosts))


def host_of(run: Run) -> dict[int | None, str]:
    """Each rank's, where one is told."""
    told: dict[int | None, list[str]] = defaultdict(list)
    for host, ranks in places(run).ranks_on.items():
        for rank in ranks:
            told[rank].append(host)
    return {rank: hosts[0] for rank, hosts in told.items() if len(hosts) == 1 and not _NO_HOST.fullmatch(hosts[0])}


_NO_HOST = regex(r"localhost|127\..*|(?:r|rank)[-_]?\d{1,6}|[a-z]{0,20}(?:agent|launcher|console|output)|.*_.*", re.I)
"""What files are called beside: a process, a rank, or whose words they hold."""


def _left_by_srun(run: Run) -> Iterator[tuple[str, int]]:
    """Of tasks that ended by themselves, where srun's tasks are the ranks: as those are that it says were killed."""
    sources = {e.source for e in run.of_kind("exit") if e.rank is not None and e.fields.get("by_srun")}
    for source in sources:
        yield from left_by_themselves(run, source)


def left_by_themselves(run: Run, source: str) -> Iterator[tuple[str, int]]:
    """Host and number of srun's tasks that ended with an error before it ended the others."""
    for event in run.saying("Exited with exit code", "line"):
        if event.source == source and (found := _LEFT.search(event.text)) is not None:
            yield from ((found["host"], task) for task in islice(counted(found["tasks"]), MOST_TASKS))


_LEFT = regex(
    r"srun: error: (?P<host>[\w.-]{1,120}): tasks? (?P<tasks>[\d,-]{1,2000}): Exited with exit code [1-9]\d{0,2}\b"
)


def _whose_output(run: Run) -> Iterator[tuple[int, str, int | None]]:
    """A file in which one process of NCCL's speaks, and one rank: they are the same. Where all of NCCL's processes in a
    file are of one host, who raises an error in it is on that host, too."""
    raised: dict[str, set[int]] = defaultdict(set)
    for event in run.of_kind("traceback"):
        if event.rank is not None:
            raised[event.source].add(event.rank)
    spoken: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for event, host, pid in _nccls(run):
        if event.rank is None:
            spoken[event.source].add((host, pid))
    ranks: dict[str, set[int]] = defaultdict(set)
    speaking = run.of_kind("line", "traceback", "progress") if spoken else []
    for source, rank in {(e.source, e.rank) for e in speaking if e.rank is not None}:
        ranks[source].add(rank)
    for source, processes in spoken.items():
        if len(processes) == len(ranks[source]) == 1:
            ((host, pid),) = processes
            yield next(iter(ranks[source])), host, pid
        if len(hosts := {host for host, _ in processes}) == 1:
            yield from ((rank, next(iter(hosts)), None) for rank in raised.get(source, ()))


def _nccls(run: Run) -> Iterator[tuple[Event, str, int]]:
    """NCCL's own lines, with the host and the process that each begins with."""
    for event in run.saying("NCCL ", "line"):
        if found := NCCL_PROCESS.match(event.text):
            yield event, found[1], int(found[2])


def _by_their_own_words(run: Run, hosts: dict[str, set[int]]) -> None:
    """`… node-02 rank 2 INFO step 40`: a word at the line's head that some file is named after."""
    files = {word for source in run.sources for word in parts_of_name(source.id)}
    for event in run.of_kind("progress"):
        if event.rank is not None:
            for word in _WORD.findall(event.text[:_HEAD]):
                if word in files and any(letter.isdigit() for letter in word) and not word.isdigit():
                    hosts[short(word)].add(event.rank)


def _gpus(run: Run, hosts: dict[str, set[int]]) -> dict[tuple[str, str], int]:
    """NCCL says it of each rank, in the largest group by the job's numbers; else ranks take GPUs in their order."""
    facts = [fact for fact in run.facts if fact.name in ("gpu", "gpu index") and isinstance(fact.value, str)]
    said = [
        (int(found[3]), short(found[1]), found[2], fact.rank)
        for fact in facts
        if fact.rank is not None and (found := _OF_NCCL.fullmatch(fact.value))
    ]
    if said:
        largest = max(said)[0]
        world = {(host, bus): rank for size, host, bus, rank in said if size == largest}
        for (host, _), rank in world.items():
            hosts[host].add(rank)
        return world
    listed: dict[str, dict[str, int]] = defaultdict(dict)
    for fact in facts:
        if found := _OF_SMI.fullmatch(fact.value):
            for host in parts_of_name(fact.source):
                listed[short(host)][found[1]] = int(found[2])
    return {
        (host, bus): sorted(hosts[host])[index]
        for host, buses in listed.items()
        if host in hosts and len(buses) == len(hosts[host])
        for bus, index in buses.items()
        if index < len(buses)
    }


def whole_blocks(run: Run) -> Mapping[str, frozenset[int]]:
    """Ranks are numbered host by host: where what is known of each lies in a block of its own, it has all of that."""
    hosts = places(run).ranks_on
    each, rest = divmod(len(run.expected_ranks), len(hosts) or 1)
    blocks = (
        {host: {rank // each for rank in ranks} for host, ranks in hosts.items()}
        if 2 <= each <= numbering.MOST_ON_A_NODE and not rest
        else {}
    )
    if sorted(map(sorted, blocks.values())) != [[at] for at in range(len(hosts))]:
        return hosts
    return {host: frozenset(range(at * each, (at + 1) * each)) for host, (at,) in blocks.items()}


def located(run: Run, found: Sequence[Finding]) -> list[Finding]:
    """What names no rank but a host or pod gets the ranks that were there, where that is known."""
    bridges = given_out.bridged(run)
    if not bridges and all(one.ranks and not pods.pod_of(one) for one in found if one.severity == "error"):
        return list(found)
    known = places(run)
    found = [given_out.by_loopback(run, one, known) for one in found]
    found = [given_out.behind_a_bridge(one, bridges, known, run.expected_ranks) for one in found]
    found = [_handed_out(one, tasks) for one in found] if (tasks := _failed_tasks(run)) else found
    blocks = _blocks(run, found, known)
    of_source = {source.name: source.rank for source in run.sources}
    everybody = run.expected_ranks
    found = [_by_index(run, one, known) for one in found]
    return [_located(one, known, blocks, of_source, everybody) if one.severity == "error" else one for one in found]


def _by_index(run: Run, one: Finding, known: Places) -> Finding:
    """`GPU 2` of a job on one node, each rank of which has a GPU, is rank 2's. A process that is shown one GPU alone
    calls it 0, so that one says nothing."""
    event = one.evidence[0].event
    if one.symptom != "device-out-of-memory" or one.ranks or event.rank is not None:
        return one
    if len(set(known.ranks_on.values())) > 1:  # a host may have two names
        return one
    index = int(found[1]) if (found := _OF_GPU.search(event.text)) else 0
    return at_ranks(one, (index,)) if 0 < index < (run.world_size or _ended_together(run)) <= _ON_ONE_NODE else one


@once
def _ended_together(run: Run) -> int:
    """By torch's launcher of old, on its node."""
    return len(run.saying("Killing subprocess ", "line"))


def _failed_tasks(run: Run) -> dict[str, int]:
    """Logs of TensorFlow's coordinators, and the one worker in which work that they handed out has failed."""
    logs = {fact.source for fact in run.facts if fact.name == "coordinator"}
    said: dict[str, set[int]] = defaultdict(set)
    for event in run.saying("error when processing ", "line") if logs else ():
        if event.source in logs and (found := _CLOSURE.search(event.text)) is not None:
            said[event.source].add(int(found[1]))
    return {source: next(iter(tasks)) for source, tasks in said.items() if len(tasks) == 1}


def _handed_out(one: Finding, tasks: Mapping[str, int]) -> Finding:
    """What a coordinator tells of its worker is the worker's failure."""
    task = tasks.get(one.evidence[0].event.source)
    told = task is not None and not one.ranks and one.consequence == "never" and one.severity == "error"
    return at_ranks(one, {task}) if told and task is not None else one


def _located(
    one: Finding,
    known: Places,
    blocks: Mapping[str, frozenset[int]],
    of_source: Mapping[str, int | None],
    everybody: frozenset[int],
) -> Finding:
    event = one.evidence[0].event
    if pod := pods.pod_of(one):
        ranks = pods.ranks_of_pod(pod, known, of_source, len(everybody))
        return at_ranks(one, ranks) if ranks else one
    if one.ranks or event.rank is not None or one.consequence == "always" or len(one.hosts) > 1:
        return one
    here = _meant(one, event, known)
    rank = _in_box(event)
    rank = _rank_of_gpu(one, here or _of_file(event, known), known) if rank is None else rank
    if rank is None and one.symptom in (*_OF_NODES, "host-out-of-memory") and (not here or "host" in one.fields):
        rank = of_source.get(one.fields.get("host", ""))
    if rank is None and one.consequence == "never" and not _OF_TWO.search(event.text):
        own = rank_by_nccl(event, known)
        if own is not None and "accused" not in one.fields:
            return replace(one, ranks=(own,), scope="rank")
        rank = own
    if rank is not None:
        return at_ranks(one, {rank})
    ranks = known.ranks_on.get(here, frozenset())
    if one.symptom in LACKING and short(one.fields.get("host", "")) == here:
        ranks = _its_block(ranks, known, everybody)
    if not ranks and event.kind == "traceback":
        ranks = blocks.get(here, frozenset())
    if one.symptom in _OF_PROCESSES and len(ranks) > 1:  # one of them, but which?
        return one
    return at_ranks(one, ranks) if ranks and ranks != everybody else one


def _its_block(ranks: frozenset[int], known: Places, everybody: frozenset[int]) -> frozenset[int]:
    """What a whole host lacks all of its ranks lack, also those of whom nobody has said that they are there."""
    blocks = {rank // known.each for rank in ranks} if known.each else set()
    if len(blocks) != 1:
        return ranks
    first = blocks.pop() * known.each
    return everybody & set(range(first, first + known.each))


def _in_box(event: Event) -> int | None:
    """Hydra, the launcher of MPICH and Intel MPI, tells in one line of its box who it was, and in the next how it
    ended."""
    above = event.fields.get("before", ())
    found = _BOX.match(str(above[-1])) if above and _CRASHED.match(event.text) else None
    return int(found[1]) if found else None


def _rank_of_gpu(one: Finding, host: str, known: Places) -> int | None:
    """By the GPU's place on the bus; else by its number, where all eight of a host have a rank."""
    gpu = _BUS.search(one.fields.get("gpu", ""))
    rank = known.rank_of_gpu.get((host, gpu[1].lower())) if gpu else None
    if rank is not None or (said := _BY_DRIVER.search(one.evidence[0].event.text)) is None:
        return rank
    there, index = sorted(known.ranks_on.get(host, ())), int(said[1])
    in_a_row = len(there) == _ON_ONE_NODE and there[-1] - there[0] == len(there) - 1
    return there[index] if in_a_row and index < len(there) else None


def _meant(one: Finding, event: Event, known: Places) -> str:
    """The host that the message or its file is about."""
    if one.symptom in _OF_NODES:
        if _NOT_THE_ONE.search(event.text):
            return ""
        said = {short(word) for word in _WORD.findall(event.text)} & known.ranks_on.keys()
        if not said and event.host and _OWN_END.search(event.text):
            return short(event.host)
        if not said and _DESCRIBED.match(event.text):
            return _of_file(event, known)
        named = short(one.fields.get("host", ""))
        return named if named in known.ranks_on else next(iter(said)) if len(said) == 1 else ""
    named = short(one.fields.get("host", ""))
    if one.symptom in LACKING and named in known.ranks_on:
        return named
    return _of_file(event, known) if one.symptom in _OF_FILES else ""


def _of_file(event: Event, known: Places) -> str:
    if event.host:
        return short(event.host)
    words = {short(word) for word in parts_of_name(event.source)}
    of_file = words & known.ranks_on.keys() or {host for host in known.ranks_on if _same_host(host, words)}
    return next(iter(of_file)) if len(of_file) == 1 else ""


def _same_host(name: str, words: Set[str]) -> bool:
    """What is known by the name of its log, `node-02_agent`, is the host of `node-02_dmesg.txt`."""
    return any(word[:1].isalpha() and word[-1:].isdigit() for word in (parts_of_name(name) - {name}) & words)


def _blocks(run: Run, found: Sequence[Finding], known: Places) -> dict[str, frozenset[int]]:
    """Files named after hosts, in which nobody says which rank he is: launchers number the hosts in their order."""
    hosts = sorted({short(source.host) for source in run.sources if source.host}, key=in_order)
    if len(hosts) < 2 or known.ranks_on or any(source.rank is not None for source in run.sources):
        return {}
    tracebacks: dict[str, list[str]] = defaultdict(list)
    for one in found:
        event = one.evidence[0].event
        if event.kind == "traceback" and event.host and one.severity == "error":
            tracebacks[short(event.host)].append(event.text)
    if tracebacks.keys() >= set(hosts):
        return {}
    each = {len(texts) for texts in tracebacks.values() if len(set(texts)) == 1}
    if run.world_size is not None:
        size = run.world_size // len(hosts) if run.world_size % len(hosts) == 0 else 0
    else:
        size = each.pop() if len(each) == 1 else 0
        size = size if size > 1 else 0  # one voice may be one of many
    return {host: frozenset(range(at * size, (at + 1) * size)) for at, host in enumerate(hosts) if size}


def on_the_lost_node(run: Run, first: Finding, errors: Sequence[Finding]) -> Finding:
    """A whole node is gone, and some message tells which: all its ranks are."""
    known = places(run).ranks_on
    if not first.ranks and (taken := pods.taken_with(run, first.evidence[0].event) & known.keys()) and len(taken) == 1:
        return at_ranks(first, known[taken.pop()])
    texts = [one.evidence[0].event.text for one in errors if one.symptom == first.symptom]
    failed = {found[1] for text in texts if (found := _NODE_FAILED.search(text)) is not None}
    if not first.ranks and len(failed) == 1:
        lost = known.get(short(next(iter(failed)))) or _silent_block(run, errors)
        return at_ranks(first, lost) if lost else first
    gone = [text for text in texts if _NODE_GONE.search(text)]
    if not gone:
        return first
    said = {(found[1] or found[2]).replace("-", ".") for text in gone for found in _OF_MACHINE.finditer(text)}
    there = [ranks for host in said if (ranks := known.get(host)) and set(ranks) >= set(first.ranks)]
    return at_ranks(first, there[0]) if len(there) == 1 else first


def _silent_block(run: Run, errors: Sequence[Finding]) -> frozenset[int]:
    """As many ranks in a row as a node has, if all others say that they waited for somebody."""
    said = {fact.value for fact in run.facts if fact.name == "ranks on a node"}
    each = int(next(iter(said))) if len(said) == 1 and run.world_size else 0
    waited = {rank for one in errors if one.symptom in _MISSED for rank in one.ranks}
    silent = run.expected_ranks - waited
    first = min(silent, default=0)
    whole = len(silent) == each > 0 and first % each == 0 and max(silent) == first + each - 1
    return silent if whole and waited else frozenset()

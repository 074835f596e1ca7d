"""Where ranks were: the host and the process of each, from whatever said so, and whom a message about a host means."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from paramedic.detect import ras
from paramedic.detect.once import once
from paramedic.model import Event, Finding, Run

NCCL_PROCESS = re.compile(
    r"(?:\[[^\]\n]{1,60}\] ?|\d{4}-\d\d-\d\d[ T][\d:.,]{8,15}Z? )?([\w.-]{1,120}):(\d{1,10}):\d{1,10} \[(-?\d{1,3})\] "
)
_ADDRESS = re.compile(r"[\d.]+|[0-9a-fA-F:]*:[0-9a-fA-F:]*")
_WORD = re.compile(r"[A-Za-z0-9][\w.-]{0,120}")
_NUMBERED_POD = re.compile(r"\bpod/([a-z0-9][a-z0-9.-]{0,252})-(\d{1,5})\b")
_POD = re.compile(r"\bpod/([a-z0-9][a-z0-9.-]{0,252})|^([a-z0-9][a-z0-9.-]{0,252}-\d{1,5}) {1,40}\d{1,4}/\d{1,4} ")
_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.|$)")
_OF_NCCL = re.compile(r"(\S{1,120}) ([0-9a-f]{2}:[0-9a-f]{2}) (\d{1,6})")
_OF_PLACE = re.compile(r"(\S{1,120}) (\d{1,6}) (\d{1,6})")
_NUMBERED_NODE = re.compile(r"(\S{1,120}) (\d{1,6})")
_OF_SMI = re.compile(r"([0-9a-f]{2}:[0-9a-f]{2}) (\d{1,2})")
_HEAD = 80  # so far into a line of progress a program names its host
_NOT_THE_ONE = re.compile(r"\bON \S{1,120} CANCELLED")
"""Slurm names the first node of a job that it cancels, whichever it lost."""
_ONE_HOST = {"cross-node-environment-skew": 0.03}
_ODD_HOST = {"cross-node-environment-skew": 30.0}
_LACKING = frozenset(
    ["build-or-install-failure", "import-or-missing-symbol", "path-or-permission-error", "unsupported-api-or-attribute"]
)
"""What depends on what is installed on a host, or mounted there."""
_LOADER_WORKER = re.compile(r"DataLoader worker \(pid (\d{1,10})\) ")
_DESCRIBED = re.compile(r"\s{0,12}(?:Message|Status|Reason|Last State):\s")
"""Lines of `kubectl describe`, whose file is about one pod."""
_OWN_END = re.compile(r"death signal|\bSIGTERM\b")
"""An agent that is told to end speaks of itself."""
_INTERFACE, _GIVEN_OUT = "network-interface-or-firewall-misconfiguration", 60.0
MOST_ON_A_NODE, _MOST_NODES = 1024, 16_384
_NUMBERED = re.compile(r"(.{1,120}?[a-z_-])(0|[1-9]\d{0,5})")
_PADDED = re.compile(r"(.{1,120}?[a-z_-])0\d{1,5}")
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


@dataclass(frozen=True, slots=True)
class Places:
    ranks_on: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """By the host's short name."""
    ranks_of_pid: Mapping[int, Set[int]] = field(default_factory=dict)
    """Two ranks on two hosts may have one number."""
    rank_of_gpu: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By the host's short name and the GPU, as `ab:00`."""
    pods: Mapping[str, int] = field(default_factory=dict)
    """`job-worker` → how many of them are spoken of."""
    each: int = 0
    """How many ranks a host has, where those that are known in a row say so; else 0."""

    def rank_of(self, pid: int, host: str | None = None) -> int | None:
        ranks = self.ranks_of_pid.get(pid, frozenset())
        there: Set[int] = self.ranks_on.get(short(host), frozenset()) if host else frozenset()
        if host and (there or len(ranks) > 1):
            ranks = ranks & there  # each container counts its processes from 1 on
        elif host:
            ranks = ranks - self._on_others(host)
        return next(iter(ranks)) if len(ranks) == 1 else None

    def _on_others(self, host: str) -> Set[int]:
        """Ranks of which it is known that they are on another host; one may have a name and an address."""
        of_a_kind = _ADDRESS.fullmatch(host) is None
        hosts = [name for name in self.ranks_on if (_ADDRESS.fullmatch(name) is None) == of_a_kind]
        return frozenset(rank for name in hosts if name != short(host) for rank in self.ranks_on[name])


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
    for event in run.events:
        if event.host:
            note(event.rank, event.host)
        if event.kind == "exit":
            note(event.rank, event.fields.get("host"), event.fields["pid"])
        elif event.kind == "line" and (found := NCCL_PROCESS.match(event.text)):
            rank = of_file.get(event.source) if event.rank is None else event.rank
            note(rank, found[1], int(found[2]))
        elif event.kind == "traceback" and (found := _LOADER_WORKER.search(event.text)):
            note(event.rank, pid=int(found[1]))  # the kernel speaks of it by this number
    for rank, host, pid in _whose_output(run):
        note(rank, host, pid)
    for process, rank in ras.rank_of_process(run).items():
        note(rank, pid=process)
    _by_their_own_words(run, hosts)
    _in_slurms_order(run, hosts)
    _as_launched(run, hosts)
    _as_numbered(run, hosts)
    _in_slots_order(run, hosts)
    gpus = _gpus(run, hosts)
    _last_block(run, hosts)
    _numbered(run, hosts)
    _in_racks(run, hosts)
    return Places({host: frozenset(ranks) for host, ranks in hosts.items()}, pids, gpus, _pods(run), _each(hosts))


def _whose_output(run: Run) -> Iterator[tuple[int, str, int | None]]:
    """A file in which one process of NCCL's speaks, and one rank: they are the same. Where all of NCCL's processes in a
    file are of one host, who raises an error in it is on that host, too."""
    spoken: dict[str, tuple[set[tuple[str, int]], set[int], set[int]]] = defaultdict(lambda: (set(), set(), set()))
    for event in run.of_kind("line", "traceback"):
        processes, ranks, raised = spoken[event.source]
        if event.rank is not None:
            (ranks if event.kind == "line" else raised).add(event.rank)
        elif len(processes) < MOST_ON_A_NODE and (found := NCCL_PROCESS.match(event.text)):
            processes.add((found[1], int(found[2])))
    for processes, ranks, raised in spoken.values():
        hosts = {host for host, _ in processes}
        if len(processes) == len(ranks) == 1:
            ((host, pid),) = processes
            yield next(iter(ranks)), host, pid
        if len(hosts) == 1:
            yield from ((rank, next(iter(hosts)), None) for rank in raised)


def _each(hosts: Mapping[str, Set[int]]) -> int:
    known = [ranks for ranks in hosts.values() if ranks]
    rows = (len(ranks) for ranks in known if max(ranks) - min(ranks) == len(ranks) - 1)
    size = max(rows, default=0)
    if size > 1 and all(min(r) // size == max(r) // size for r in known):
        return size
    fits = [n for n in range(2, _MOST_GPUS + 1) if len(known) >= _SEVERAL and _in_blocks(known, n)]
    return fits[0] if len(fits) == 1 else 0


_MOST_GPUS, _SEVERAL = 16, 3


def _in_blocks(known: Sequence[Set[int]], each: int) -> bool:
    """All that is known of each host lies in a block of its own."""
    blocks = [{rank // each for rank in ranks} for ranks in known]
    return all(len(there) == 1 for there in blocks) and len(set().union(*blocks)) == len(known)


def _pods(run: Run) -> dict[str, int]:
    found: dict[str, int] = {}
    texts = [event.text for event in run.saying("pod/", "line")]
    texts += [f"pod/{source.name}" for source in run.sources if texts]
    for text in texts:
        for stem, number in _NUMBERED_POD.findall(text):
            found[stem] = max(found.get(stem, 0), int(number) + 1)
    return found


def whole_blocks(run: Run) -> Mapping[str, frozenset[int]]:
    """Ranks are numbered host by host: where what is known of each lies in a block of its own, it has all of that."""
    hosts = places(run).ranks_on
    each, rest = divmod(len(run.expected_ranks), len(hosts) or 1)
    blocks = (
        {host: {rank // each for rank in ranks} for host, ranks in hosts.items()}
        if 2 <= each <= MOST_ON_A_NODE and not rest
        else {}
    )
    if sorted(map(sorted, blocks.values())) != [[at] for at in range(len(hosts))]:
        return hosts
    return {host: frozenset(range(at * each, (at + 1) * each)) for host, (at,) in blocks.items()}


def _last_block(run: Run, hosts: dict[str, set[int]]) -> None:
    """Of nodes with equally many ranks, all but one are known to have theirs: the last one has what is left."""
    names = {short(host) for host in (*(e.host for e in run.events), *(s.host for s in run.sources)) if host} | {*hosts}
    each, rest = divmod(run.world_size or 0, len(names) or 1)
    unknown = [name for name in names if not hosts.get(name)]
    if len(names) < 2 or len(unknown) != 1 or rest or each < 1:
        return
    blocks = {name: {rank // each for rank in ranks} for name, ranks in hosts.items() if ranks}
    taken = {block for there in blocks.values() for block in there}
    whole = any(rank % each == each - 1 for ranks in hosts.values() for rank in ranks)  # so that `each` is no guess
    if whole and len(taken) == len(blocks) == len(names) - 1 and all(len(there) == 1 for there in blocks.values()):
        for left in set(range(len(names))) - taken:
            hosts[unknown[0]] = set(range(left * each, (left + 1) * each))


def _numbered(run: Run, hosts: dict[str, set[int]]) -> None:
    """`worker-7` has ranks 56 to 63, where those of all its fellows tell that each has eight, in the order of names;
    not where some are called `worker-07`."""
    size = max(run.expected_ranks, default=-1) + 1
    fellows: dict[str, dict[int, set[int]]] = defaultdict(dict)
    for host, ranks in hosts.items():
        if ranks and (name := _NUMBERED.fullmatch(host)) is not None:
            fellows[name[1]][int(name[2])] = ranks
    padded = {name[1] for host in hosts if (name := _PADDED.fullmatch(host)) is not None}
    for stem, known in fellows.items():
        if stem in padded:
            continue
        each = [n for n in range(2, min(size, MOST_ON_A_NODE) + 1) if size % n == 0 and len(known) > 1]
        fits = [
            (n, o)
            for n in each
            for o in (0, 1)
            if all({r // n for r in there} == {k + o} for k, there in known.items())
        ]
        if len(fits) == 1 and size // fits[0][0] <= _MOST_NODES:
            n, o = fits[0]
            hosts.update({f"{stem}{k}": set(range((k + o) * n, (k + o + 1) * n)) for k in range(size // n - o)})


_IN_RACK = re.compile(r"([a-z][a-z_-]{0,40})(\d{1,4})([a-z_-]{1,20})(\d{1,4})")
_MOST_IN_A_RACK = 72


def _in_racks(run: Run, hosts: dict[str, set[int]]) -> None:
    """`r3n05` has ranks 296 to 303, where all known hosts tell how many stand in a rack, and how many ranks on each."""
    known: dict[tuple[str, str], dict[tuple[int, int], set[int]]] = defaultdict(dict)
    for host, ranks in hosts.items():
        if ranks and (name := _IN_RACK.fullmatch(host)) is not None:
            known[name[1], name[3]][int(name[2]), int(name[4])] = ranks
    for (stem, middle), there in known.items():
        sizes = {len(ranks) for ranks in there.values()}
        if len(there) < 3 or len({rack for rack, _ in there}) < 2 or len(sizes) != 1:
            continue
        each = sizes.pop()
        blocks = {place: min(ranks) // each for place, ranks in there.items()}
        (rack, node), first = min(blocks.items())
        fits = [
            n
            for n in range(1, _MOST_IN_A_RACK + 1)
            if all((r - rack) * n + k - node == block - first for (r, k), block in blocks.items())
        ]
        if len(fits) != 1:
            continue
        named = re.compile(rf"\b{re.escape(stem)}(\d{{1,4}}){re.escape(middle)}(\d{{1,4}})\b")
        for found in (one for event in run.of_kind("line") for one in named.finditer(event.text)):
            at = (int(found[1]) - rack) * fits[0] + int(found[2]) - node + first
            ranks = set(range(at * each, (at + 1) * each))
            if at >= 0 and found[0] not in hosts and ranks <= run.expected_ranks:
                hosts[found[0]] = ranks


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


def _in_slurms_order(run: Run, hosts: dict[str, set[int]]) -> None:
    """Slurm gives tasks to its nodes in blocks, unless somebody asks for another way; what is known must agree."""
    listed = [fact.value.split(",") for fact in run.facts if fact.name == "nodelist"]
    nodes = [short(node) for node in max(listed, key=len, default=[])]
    said = {fact.value for fact in run.facts if fact.name == "tasks on a node"}
    each, rest = divmod(run.world_size or len(run.expected_ranks), len(nodes) or 1)
    if run.world_size is None and len(said) == 1:
        each, rest = int(next(iter(said))), 0
    if not nodes or not each or rest:
        return
    blocks = {node: set(range(at * each, (at + 1) * each)) for at, node in enumerate(nodes)}
    if all(ranks <= blocks.get(host, ranks) for host, ranks in hosts.items()):
        hosts.update(blocks)


def _as_launched(run: Run, hosts: dict[str, set[int]]) -> None:
    """`--node-rank 6 --nproc-per-node 4` on a host means ranks 24 to 27, unless torchrun's agents met in another order:
    what is known must agree."""
    blocks: dict[str, set[int]] = {}
    for host, number, each, _ in placed(run, "node"):
        if each <= MOST_ON_A_NODE:
            block = set(range(number * each, (number + 1) * each))
            blocks[short(host)] = block if blocks.get(short(host), block) == block else set()
    apart = len({min(ranks, default=-1) for ranks in blocks.values()}) == len(blocks)
    if apart and all(ranks <= blocks.get(host, ranks) for host, ranks in hosts.items()):
        hosts.update({host: ranks for host, ranks in blocks.items() if ranks and not hosts.get(host)})


def _as_numbered(run: Run, hosts: dict[str, set[int]]) -> None:
    """All nodes of a job are listed with their numbers: each has its share of the ranks, in this order."""
    told = [fact.value for fact in run.facts if fact.name == "place" and isinstance(fact.value, str)]
    said = {(short(hit[1]), int(hit[2])) for text in told if (hit := _NUMBERED_NODE.fullmatch(text)) is not None}
    nodes = {number: host for host, number in said}
    each, rest = divmod(run.world_size or 0, len(nodes) or 1)
    counted = len(nodes) > 1 and nodes.keys() == set(range(len(nodes))) and len(nodes) == len(said)
    if not counted or not 1 <= each <= MOST_ON_A_NODE or rest or len({*nodes.values()}) < len(nodes):
        return
    blocks = {host: set(range(at * each, (at + 1) * each)) for at, host in nodes.items()}
    if all(ranks <= blocks.get(host, ranks) for host, ranks in hosts.items()):
        hosts.update(blocks)


_OF_SLOTS = re.compile(r"(\S{1,120}) (\d{1,4})")
_PER_NODE = re.compile(r"ppr:(\d{1,4}):node")


def _in_slots_order(run: Run, hosts: dict[str, set[int]]) -> None:
    """Open MPI and Horovod fill one host after the other, unless somebody asks for another way; what is known must
    agree."""
    said = [
        (short(found[1]), int(found[2]))
        for fact in run.facts
        if fact.name == "slots" and isinstance(fact.value, str) and (found := _OF_SLOTS.fullmatch(fact.value))
    ]
    each = {found[1] if (found := _PER_NODE.fullmatch(str(f.value))) else "" for f in run.facts if f.name == "mapped"}
    slots = dict(said)
    if len(slots) < 2 or len(slots) < len(set(said)) or each - {str(count) for count in slots.values()}:
        return
    size, at = run.world_size or sum(slots.values()), 0
    blocks: dict[str, set[int]] = {}
    for host, count in slots.items():
        blocks[host] = set(range(at, min(at + count, size)))
        at += count
    if at <= _MOST_NODES and all(ranks <= blocks.get(host, ranks) for host, ranks in hosts.items()):
        hosts.update({host: ranks for host, ranks in blocks.items() if ranks})


def placed(run: Run, name: str) -> Iterator[tuple[str, int, int, int | None]]:
    """(host, number on it, of how many, rank) of the facts of that name. A recording is a stranger's file."""
    for fact in run.facts:
        if fact.name == name and isinstance(fact.value, str) and (said := _OF_PLACE.fullmatch(fact.value)):
            yield said[1], int(said[2]), int(said[3]), fact.rank


def _by_their_own_words(run: Run, hosts: dict[str, set[int]]) -> None:
    """`… node-02 rank 2 INFO step 40`: a word at the line's head that some file is named after."""
    files = {word for source in run.sources for word in parts_of_name(source.id)}
    for event in run.of_kind("progress"):
        if event.rank is not None:
            for word in _WORD.findall(event.text[:_HEAD]):
                if word in files and any(letter.isdigit() for letter in word) and not word.isdigit():
                    hosts[short(word)].add(event.rank)


def located(run: Run, found: Sequence[Finding]) -> list[Finding]:
    """What names no rank but a host or pod gets the ranks that were there, where that is known."""
    bridged = _bridged(run)
    if not bridged and all(one.ranks and not _speaks_of_pods(one) for one in found if one.severity == "error"):
        return list(found)
    known = places(run)
    found = [_behind_a_bridge(_by_loopback(run, one, known), bridged, known, run.expected_ranks) for one in found]
    found = [_handed_out(one, tasks) for one in found] if (tasks := _failed_tasks(run)) else found
    blocks = _blocks(run, found, known)
    pods = {source.name: source.rank for source in run.sources}
    everybody = run.expected_ranks
    found = [_by_index(run, one, known) for one in found]
    return [_located(one, known, blocks, pods, everybody) if one.severity == "error" else one for one in found]


_OF_GPU = re.compile(r"[( ]GPU (\d{1,2})[; ]")
_ON_ONE_NODE = 8


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


def _bridged(run: Run) -> Mapping[str, set[str]]:
    """Addresses that NCCL gave out though only their own host can reach them, and the hosts that did."""
    hosts: dict[str, set[str]] = defaultdict(set)
    for fact in run.facts:
        if fact.name == "bridge" and isinstance(fact.value, str) and len(words := fact.value.split(" ")) == 2:
            hosts[words[1]].add(short(words[0]))
    return hosts


def _behind_a_bridge(
    one: Finding, bridged: Mapping[str, set[str]], known: Places, everybody: frozenset[int]
) -> Finding:
    """Who could not connect to such an address is a victim; the fault is with those who gave it out."""
    hosts = bridged.get(one.fields.get("host", ""), ()) if one.symptom.startswith("rendezvous-setup") else ()
    ranks = frozenset(rank for host in hosts for rank in known.ranks_on.get(host, ()))
    if not ranks or ranks == everybody or one.severity != "error":
        return one
    accused = at_ranks(one, ranks)
    return replace(
        accused,
        hosts=tuple(sorted(hosts)),
        consequence="never",
        weights={**one.weights, _INTERFACE: _GIVEN_OUT},
        fields={**accused.fields, "who": f"The others, to whom {_few(hosts)} gave an address inside its own host,"},
    )


def _by_loopback(run: Run, one: Finding, known: Places) -> Finding:
    """Of two hosts the one is refused at an address that every host has for itself: the other has given it out."""
    if not one.fields.get("remote", "").startswith("127.") or one.ranks:
        return one
    blocks = set(known.ranks_on.values())  # a host may have two names
    if len(blocks) != 2:
        return one
    source = one.evidence[0].event.source
    here = {e.rank for e in run.of_kind("exit") if e.source == source} - {None}
    others = [ranks for ranks in blocks if not ranks & here]
    if not here or len(others) != 1:
        return one
    hosts = [host for host, ranks in known.ranks_on.items() if ranks == others[0]]
    accused = at_ranks(one, others[0])
    who = f"Who was to connect to {_few(hosts[:1])}, which gave out its own loopback,"
    return replace(accused, hosts=tuple(hosts[:1]), fields={**accused.fields, "who": who})


_CLOSURE = re.compile(
    r"/job:worker(?:/replica:\d{1,4})?/task:(\d{1,6}) encountered the following error"
    r" when processing (?:resource )?closure"
)


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


def _few(hosts: Collection[str]) -> str:
    return ", ".join(sorted(hosts)[:4]) + (", …" if len(hosts) > 4 else "")


def _located(
    one: Finding,
    known: Places,
    blocks: Mapping[str, frozenset[int]],
    pods: Mapping[str, int | None],
    everybody: frozenset[int],
) -> Finding:
    event = one.evidence[0].event
    if _speaks_of_pods(one) and (pod := _POD.search(event.text)):
        ranks = _ranks_of_pod(pod[1] or pod[2], known, pods, len(everybody))
        return at_ranks(one, ranks) if ranks else one
    if one.ranks or event.rank is not None or one.consequence == "always":
        return one
    here = _meant(one, event, known)
    rank = _in_box(event)
    rank = _rank_of_gpu(one, here or _of_file(event, known), known) if rank is None else rank
    if rank is None and one.symptom in (*_OF_NODES, "host-out-of-memory") and (not here or "host" in one.fields):
        rank = pods.get(one.fields.get("host", ""))
    if rank is None and one.consequence == "never" and not _OF_TWO.search(event.text):
        own = rank_by_nccl(event, known)
        if own is not None and "accused" not in one.fields:
            return replace(one, ranks=(own,), scope="rank")
        rank = own
    if rank is not None:
        return at_ranks(one, {rank})
    ranks = known.ranks_on.get(here, frozenset())
    if not ranks and event.kind == "traceback":
        ranks = blocks.get(here, frozenset())
    if one.symptom in _OF_PROCESSES and len(ranks) > 1:  # one of them, but which?
        return one
    return at_ranks(one, ranks) if ranks and ranks != everybody else one


_BOX = re.compile(r"= {1,6}RANK (\d{1,6}) PID \d{1,10} RUNNING AT \S")
_CRASHED = re.compile(r"= {1,6}KILLED BY SIGNAL: (?:4|7|8|11) \(")


def _in_box(event: Event) -> int | None:
    """Hydra, the launcher of MPICH and Intel MPI, tells in one line of its box who it was, and in the next how it
    ended."""
    above = event.fields.get("before", ())
    found = _BOX.match(str(above[-1])) if above and _CRASHED.match(event.text) else None
    return int(found[1]) if found else None


_OF_TWO = re.compile(r"\brank \d{1,6} and rank \d{1,6} both on\b")
"""Whoever says it has it in common with another."""


def _ranks_of_pod(name: str, known: Places, pods: Mapping[str, int | None], size: int) -> Collection[int]:
    ranks = _in_pod(name, known) or _block_of_pod(name, known, size)
    if ranks and (pods.get(name) is None or _is_its_first(pods[name], ranks)):
        return ranks
    rank = _rank_of_pod(name, pods)
    return () if rank is None else (rank,)


def _is_its_first(rank: int | None, ranks: Collection[int]) -> bool:
    """The only one in the pod's log: of several, launchers are often told to show the first alone."""
    return len(ranks) > 1 and rank == min(ranks)


def _in_pod(name: str, known: Places) -> frozenset[int]:
    """Under its own name, or that of the file with its log: `logs_train-worker-1`."""
    if (ranks := known.ranks_on.get(short(name))) is not None:
        return ranks
    files = [ranks for host, ranks in known.ranks_on.items() if name in parts_of_name(host)]
    return files[0] if len(files) == 1 and len(files[0]) > 1 else frozenset()


def _block_of_pod(name: str, known: Places, size: int) -> Collection[int]:
    """Of a job with several ranks in each pod, by the pod's number; not beside a master, which has the first."""
    stem, _, number = name.rpartition("-")
    count = known.pods.get(stem, 0)
    each, rest = divmod(size, count) if count else (0, 0)
    if (
        not 2 <= each <= MOST_ON_A_NODE
        or rest
        or not number.isdecimal()
        or known.pods.keys() & {f"{stem.rpartition('-')[0]}-master"}
    ):
        return ()
    return range(int(number) * each, (int(number) + 1) * each)


def _rank_of_gpu(one: Finding, host: str, known: Places) -> int | None:
    """By the GPU's place on the bus; else by its number, where all eight of a host have a rank."""
    gpu = _BUS.search(one.fields.get("gpu", ""))
    rank = known.rank_of_gpu.get((host, gpu[1].lower())) if gpu else None
    if rank is not None or (said := _BY_DRIVER.search(one.evidence[0].event.text)) is None:
        return rank
    there, index = sorted(known.ranks_on.get(host, ())), int(said[1])
    in_a_row = len(there) == _ON_ONE_NODE and there[-1] - there[0] == len(there) - 1
    return there[index] if in_a_row and index < len(there) else None


_BY_DRIVER = re.compile(r"\bRPC response from GPU(\d{1,2}) GSP!")
"""The driver counts GPUs as they stand on the bus, and a node full of ranks gives each one in this order."""


def rank_by_nccl(event: Event, known: Places) -> int | None:
    """Its own, or by NCCL, which begins its lines with host, process and the number of the GPU: ranks of a host take
    GPUs in their order, and hosts whose ranks are all known tell how many there are on each."""
    if event.rank is not None or (said := NCCL_PROCESS.match(event.text)) is None:
        return event.rank
    if (rank := known.rank_of(int(said[2]), said[1])) is not None:
        return rank
    ranks, index = sorted(known.ranks_on.get(short(said[1]), ())), int(said[3])
    if not ranks or index < 0:
        return None
    if ranks[-1] - ranks[0] == len(ranks) - 1 and index < len(ranks):
        return ranks[index]
    each = known.each
    return ranks[0] // each * each + index if index < each and ranks[0] // each == ranks[-1] // each else None


def _rank_of_pod(name: str, pods: Mapping[str, int | None]) -> int | None:
    """As its own log's; without one, the number in its name, which beside a master counts from rank 1."""
    if name in pods:
        return pods[name]
    number = re.search(r"-worker-(\d{1,5})(?:-[a-z0-9]{5})?$", name)
    beside_master = any(re.search(r"-(?:master|chief)-0\b", pod) for pod in pods)
    return int(number[1]) + 1 if number and beside_master else None


def _speaks_of_pods(one: Finding) -> bool:
    return "accused" in one.fields and _POD.search(one.evidence[0].event.text) is not None


def at_ranks(one: Finding, ranks: Iterable[int]) -> Finding:
    chosen = tuple(sorted(ranks))
    return replace(one, ranks=chosen, scope="rank", fields={**one.fields, "accused": ", ".join(map(str, chosen))})


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


def short(host: str) -> str:
    """Without the domain; an address stays whole."""
    return host.lower() if _ADDRESS.fullmatch(host) else host.lower().split(".", 1)[0]


def in_order(name: str) -> list[tuple[bool, int, str]]:
    """node-2 before node-10."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d{1,18})", name)]


def parts_of_name(source: str) -> set[str]:
    """`kernel-node-02.log`, `node-02_dmesg.txt`: every end of it may be a host's name, and what ends with a number."""
    stem = re.sub(r"\.(?:log|txt|out|err|gz|zst)\b.*$", "", source.rsplit("/", 1)[-1])[:200]
    cuts = list(re.finditer(r"[-_.]", stem))
    heads = (stem[: cut.start()] for cut in cuts if stem[cut.start() - 1 : cut.start()].isdigit())
    return {stem, *(stem[cut.end() :] for cut in cuts), *heads}


def within_one_host(run: Run, found: Sequence[Finding]) -> list[Finding]:
    """Where all ranks are known to be on one host, a file that some do not find is missing on no node in particular;
    where all ranks of a host lack what all others have, it is the host that differs."""
    here = places(run).ranks_on
    if len(here) == 1 and set().union(*here.values()) >= run.expected_ranks:
        return [replace(one, weights={**one.weights, **_ONE_HOST}) if _is_missing_file(one) else one for one in found]
    lacking: dict[tuple[str, int], set[int]] = defaultdict(set)
    for one in found:
        if one.symptom in _LACKING and one.severity == "error":
            lacking[one.rule, one.attempt].update(one.ranks)
    odd = {key for key, ranks in lacking.items() if _are_some_hosts(ranks, here.values())}
    return [
        replace(one, weights={**_ODD_HOST, **one.weights}) if (one.rule, one.attempt) in odd else one for one in found
    ]


def _are_some_hosts(ranks: Set[int], hosts: Collection[frozenset[int]]) -> bool:
    """All ranks of fewer than half of the hosts, or of one of two; one rank alone may have a reason of its own."""
    struck = [host for host in hosts if host & ranks]
    whole = len(ranks) > 1 and ranks == set().union(*struck)
    return whole and 0 < 2 * len(struck) <= len(hosts) and all(len(host) > 1 for host in hosts)


def _is_missing_file(one: Finding) -> bool:
    return one.symptom == "path-or-permission-error" and "No such file" in one.evidence[0].event.text


_NODE_GONE = re.compile(
    r"\b(?:its|the actor's) node (?:has died|was terminated)|\bSpotInterruption\b|\bNodeShutdown\b|\bpreempted\b"
)
_OF_MACHINE = re.compile(r"\bip: (\d{1,3}(?:\.\d{1,3}){3})\b|\bip-(\d{1,3}(?:-\d{1,3}){3})\b")
"""As Ray writes it, and as Amazon names its machines by it."""


def on_the_lost_node(run: Run, first: Finding, errors: Sequence[Finding]) -> Finding:
    """A whole node is gone, and some message tells which: all its ranks are."""
    known = places(run).ranks_on
    if not first.ranks and (taken := _pods_taken(run, first.evidence[0].event) & known.keys()) and len(taken) == 1:
        return at_ranks(first, known[taken.pop()])
    texts = [one.evidence[0].event.text for one in errors if one.symptom == first.symptom]
    failed = {found[1] for text in texts if (found := _NODE_FAILED.search(text)) is not None}
    if not first.ranks and len(failed) == 1 and (silent := _silent_block(run, errors)):
        return at_ranks(first, silent)
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


_NODE_FAILED = re.compile(r"\bNode failure on ([\w.-]{1,120})\s*$")
_MISSED = ("collective-hang", "communication-runtime-error")


_TAKEN = re.compile(
    r"\b(?:Killing|Evicted|TaintManagerEviction|Preempted|NodeNotReady|NodeLost) {1,40}pod/([a-z0-9][a-z0-9.-]{0,252})"
)


def _pods_taken(run: Run, event: Event) -> set[str]:
    """Beside what a list of Kubernetes' events tells of a node: the pods that were ended."""
    if " node/" not in event.text:
        return set()
    lines = (one for one in run.saying("pod/", "line") if one.source == event.source)
    return {short(found[1]) for one in lines if (found := _TAKEN.search(one.text)) is not None}

"""Which ranks a host has by the order that ranks are given to hosts in."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set

from paramedic.detect.hostnames import short
from paramedic.model import Run
from paramedic.regex import regex

MOST_ON_A_NODE, _MOST_NODES = 1024, 16_384
_MOST_GPUS, _SEVERAL = 16, 3
_USUAL = (2, 4, 8, 16)
"""GPUs of a node, where nobody tells how many ranks there are."""
_MOST_IN_A_RACK = 72
_OF_PLACE = regex(r"(\S{1,120}) (\d{1,6}) (\d{1,6})")
_NUMBERED_NODE = regex(r"(\S{1,120}) (\d{1,6})")
_OF_SLOTS = regex(r"(\S{1,120}) (\d{1,4})")
_PER_NODE = regex(r"ppr:(\d{1,4}):node")
_NUMBERED = regex(r"(.{1,120}?[a-z_-])(0|[1-9]\d{0,5})")
_PADDED = regex(r"(.{1,120}?[a-z_-])0\d{1,5}")
_IN_RACK = regex(r"([a-z][a-z_-]{0,40})(\d{1,4})([a-z_-]{1,20})(\d{1,4})")


def as_told(run: Run, hosts: dict[str, set[int]]) -> None:
    """By what launchers say of their nodes; each fits what is known so far, or is left aside."""
    _in_slurms_order(run, hosts)
    _as_launched(run, hosts)
    _as_numbered(run, hosts)
    _in_slots_order(run, hosts)


def as_others(run: Run, hosts: dict[str, set[int]]) -> None:
    """By what is known of the other hosts."""
    _last_block(run, hosts)
    _numbered(run, hosts)
    _in_racks(run, hosts)


def ranks_on_each(hosts: Mapping[str, Set[int]]) -> int:
    """How many, where those that are known in a row say so; else 0."""
    known = [ranks for ranks in hosts.values() if ranks]
    rows = (len(ranks) for ranks in known if max(ranks) - min(ranks) == len(ranks) - 1)
    size = max(rows, default=0)
    if size > 1 and all(min(r) // size == max(r) // size for r in known):
        return size
    fits = [n for n in range(2, _MOST_GPUS + 1) if len(known) >= _SEVERAL and _in_blocks(known, n)]
    return fits[0] if len(fits) == 1 else 0


def _in_blocks(known: Sequence[Set[int]], each: int) -> bool:
    """All that is known of each host lies in a block of its own."""
    blocks = [{rank // each for rank in ranks} for ranks in known]
    return all(len(there) == 1 for there in blocks) and len(set().union(*blocks)) == len(known)


def placed(run: Run, name: str) -> Iterator[tuple[str, int, int, int | None]]:
    """(host, number on it, of how many, rank) of the facts of that name. A recording is a stranger's file."""
    for fact in run.facts:
        if fact.name == name and isinstance(fact.value, str) and (said := _OF_PLACE.fullmatch(fact.value)):
            yield said[1], int(said[2]), int(said[3]), fact.rank


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
    number = {node: at for at, node in enumerate(nodes)}
    known = {host: ranks for host, ranks in hosts.items() if ranks}
    # One task on each node, of which srun tells as it would of ranks, is a launcher of several.
    launchers = each > 1 < len(known) and all(ranks == {number.get(host)} for host, ranks in known.items())
    if launchers or all(ranks <= blocks.get(host, ranks) for host, ranks in hosts.items()):
        hosts.update(blocks)


def _as_launched(run: Run, hosts: dict[str, set[int]]) -> None:
    """`--node-rank 6 --nproc-per-node 4` on a host means ranks 24 to 27, unless torchrun's agents met in another order:
    what is known must agree. A file that other ranks speak in, too, is not that host's."""
    blocks: dict[str, set[int]] = {}
    heard: dict[str, set[int]] = defaultdict(set)
    names = {source.id: short(source.name) for source in run.sources}
    told = list(placed(run, "node"))
    for event in run.of_kind("line", "traceback") if told else ():
        if event.rank is not None:
            heard[names.get(event.source, "")].add(event.rank)
    for host, number, each, _ in told:
        if each <= MOST_ON_A_NODE:
            block = set(range(number * each, (number + 1) * each))
            alone = heard.get(short(host), block) <= block
            blocks[short(host)] = block if blocks.get(short(host), block) == block and alone else set()
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
        sizes = range(2, min(size, MOST_ON_A_NODE) + 1) if run.world_size else _USUAL
        each = [n for n in sizes if (size % n == 0 or not run.world_size) and len(known) > 1]
        fits = [
            (n, o)
            for n in each
            for o in (0, 1)
            if all({r // n for r in there} == {k + o} for k, there in known.items())
        ]
        if len(fits) == 1 and size // fits[0][0] <= _MOST_NODES:
            n, o = fits[0]
            last = size // n - o if run.world_size else max(known) + 1
            hosts.update({f"{stem}{k}": set(range((k + o) * n, (k + o + 1) * n)) for k in range(last)})


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

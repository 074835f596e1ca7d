"""What all nodes of a job must have alike, and what each must have enough of: ranks, arguments, variables, limits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from paramedic.detect.network import Found, at, several, uses_nccl
from paramedic.detect.topology import Node, listed, majority, nodes, plain
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run
from paramedic.regex import regex

_MUST_AGREE = ("nnodes", "rdzv_id", "rdzv_backend", "rdzv_endpoint", "master_addr", "master_port", "nproc_per_node")
_OF_THE_NODE = regex(
    r"MASTER_\w+|\w*RANK|LOCAL_\w+|SLURM_\w+|OMPI_COMM_\w+|CUDA_VISIBLE_DEVICES|\w+_SOCKET_IFNAME|NCCL_IB_HCA"
    r"|NCCL_TOPO_FILE|TORCHELASTIC_\w+|UCX_NET_DEVICES|WORLD_SIZE|GROUP_\w+|NCCL_IB_(?:TC|SL)|\w*TIMEOUT\w*|NCCL_HOSTID"
)
_DEBUG = {
    "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_ALGO": "", "NCCL_PROTO": "", "NCCL_LAUNCH_MODE": "",
    "NCCL_DEBUG": "TRACE", "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_MAX_NCHANNELS": "", "NCCL_BUFFSIZE": "",
    "NCCL_CHECKS_DISABLE": "1", "CUDA_LAUNCH_BLOCKING": "1",
}  # fmt: skip
"""Meant for a trial; a value means that only this one is."""
_TIMEOUTS = (
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
    "TORCH_DIST_INIT_BARRIER_TIMEOUT",
    "NCCL_IB_TIMEOUT",
    "NCCL_SOCKET_TIMEOUT",
)
_MIN_FILES = 1_024
_FILES_A_RANK = 16
_MIN_SHM = 64 << 20
_MIN_LOCKED = 1 << 30
_PORTS_OF_SIDECARS = {15001: "Istio's Envoy", 15006: "Istio's Envoy", 4140: "Linkerd", 4143: "Linkerd"}


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 8 else None


# -- ranks and arguments -------------------------------------------------------------------------------------------


def rank_numbers(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """Twice the same rank, a rank nobody has, or different ideas of how many there are."""
    among = several(run)
    for name, of in (("RANK", "WORLD_SIZE"), ("NODE_RANK", "")):
        ranks = {host: rank for host, node in among.items() if (rank := _number(node.env.get(name))) is not None}
        if len(ranks) == len(among):
            yield from _judged_ranks(among, rule, name, of, ranks)


def _judged_ranks(among: Mapping[str, Node], rule: Rule, name: str, of: str, ranks: Mapping[str, int]) -> Found:
    sizes = {host: size for host, node in among.items() if of and (size := _number(node.env.get(of))) is not None}
    local = {_number(node.env.get("LOCAL_WORLD_SIZE")) or 1 for node in among.values()}
    each = local.pop() if len(local) == 1 else 1
    free = sorted(set(range(0, len(among) * each, each)) - set(ranks.values()))
    events = [
        among[host].says(f"env {name}", f"{name}={rank}" + (f", {of}={sizes[host]}" if host in sizes else ""))
        for host, rank in sorted(ranks.items())
    ]
    counts = Counter(ranks.values())
    for host in sorted(ranks)[::-1]:
        if counts[ranks[host]] > 1:
            counts[ranks[host]] -= 1
            others = [other for other in ranks if ranks[other] == ranks[host]]
            value = str(free.pop(0)) if free else "<a free rank>"
            fields = {"what": f"{name}={ranks[host]} is on {listed(others)}", "variable": name, "value": value}
            yield at(rule, events[:8], [host], fields)
    if len(set(sizes.values())) > 1:
        usual = majority(sizes) or len(among) * each
        odd = [host for host, size in sizes.items() if size != usual] or list(sizes)
        fields = {"what": f"{of} is {listed(map(str, set(sizes.values())))}", "variable": of, "value": str(usual)}
        yield at(rule, events[:8], odd, fields)
        return
    outside = [host for host, rank in ranks.items() if host in sizes and rank >= sizes[host]]
    if outside and free:
        fields = {
            "what": f"{name}={ranks[outside[0]]} with {of}={sizes[outside[0]]}",
            "variable": name,
            "value": str(free[0]),
        }
        yield at(rule, events[:8], outside, fields)
    elif sizes and len(set(ranks.values())) == len(among) and set(sizes.values()) != {len(among) * each}:
        fields = {
            "what": f"{of}={next(iter(sizes.values()))} and {len(among)} hosts with {each} rank{'s' * (each > 1)} each",
            "variable": of, "value": str(len(among) * each),
        }  # fmt: skip
        yield at(rule, events[:8], list(sizes), fields)


def launch_arguments(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """torchrun's arguments, or MASTER_ADDR and MASTER_PORT, that the nodes do not have alike."""
    among = several(run)
    for name in _MUST_AGREE:
        yield from _unlike(
            among,
            rule,
            {h: n.launch[name] for h, n in among.items() if name in n.launch},
            f"--{name.replace('_', '-')}",
            "launch",
        )
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        yield from _unlike(
            among, rule, {h: n.env[name] for h, n in among.items() if name in n.env}, name, f"env {name}"
        )
    counts = {host: _number(node.launch.get("nnodes")) for host, node in among.items()}
    wanted = {count for count in counts.values() if count is not None}
    if len(wanted) == 1 and wanted != {len(among)}:
        text = f"--nnodes={wanted.pop()} and {len(among)} hosts"
        events = [node.says("launch", f"--nnodes={counts[host]}") for host, node in sorted(among.items())]
        yield at(rule, events[:4], list(among), {"what": text, "name": "--nnodes", "value": str(len(among))})


def _unlike(among: Mapping[str, Node], rule: Rule, values: Mapping[str, str], name: str, fact: str) -> Found:
    if len(set(values.values())) < 2:
        return
    usual = majority(values) or values[min(values)]
    odd = [host for host, value in values.items() if value != usual]
    events = [among[host].says(fact, f"{name}={value}") for host, value in sorted(values.items())]
    yield at(rule, events[:8], odd, {"what": f"{name} differs", "name": name, "value": usual})


# -- variables and versions ----------------------------------------------------------------------------------------


def environment_differs(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """A communication variable that some nodes have and others lack, or have otherwise."""
    among = several(run)
    names = sorted({name for node in among.values() for name in node.settings if not _OF_THE_NODE.fullmatch(name)})
    for name in names:
        values = {host: node.settings.get(name) for host, node in among.items()}
        if len(set(values.values())) < 2:
            continue
        usual = majority(values)
        if usual is None:
            usual = None if None in values.values() else values[min(values)]
        odd = [host for host, value in values.items() if value != usual]
        shown = {value for value in values.values() if value is not None}
        action = f"unset {name}" if usual is None else f"export {name}={plain(usual)}"
        events = [
            among[host].says(f"env {name}", f"{name}={'not set' if value is None else value}")
            for host, value in sorted(values.items())
        ]
        yield at(rule, events[:6], odd, {"name": name, "values": listed(shown), "action": action})


def left_from_a_trial(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """Variables for debugging, set in the environment or left in nccl.conf."""
    for name, only in _DEBUG.items():
        set_in: dict[str, list[Node]] = {}
        for node in nodes(run).values():
            if name in node.settings and (not only or node.settings[name].upper() == only):
                set_in.setdefault(_file_with(node, name), []).append(node)
        for file, hosts in set_in.items():
            place = f" in {file}" if file else ""
            action = f"sed -i '/^{name} *=/d' {plain(file)}" if file else f"unset {name}"
            event = hosts[0].says(f"conf {file}" if file else f"env {name}", f"{name}={hosts[0].settings[name]}{place}")
            fields = {"name": name, "place": place, "action": action}
            yield at(rule, [event], [node.host for node in hosts], fields)


def _file_with(node: Node, name: str) -> str:
    """The nccl.conf that sets it; none where the environment does."""
    if name in node.env:
        return ""
    files = [file for file, values in node.named("conf ") if isinstance(values, Mapping) and name in values]
    return min(files, default="")


def versions_differ(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    among = several(run)
    for name in sorted({name for node in among.values() for name, _ in node.named("version ") if name != "kernel"}):
        values = {host: str(node.value(f"version {name}") or "not installed") for host, node in among.items()}
        if len(set(values.values())) < 2:
            continue
        usual = majority(values) or values[min(values)]
        odd = [host for host, value in values.items() if value != usual]
        events = [among[host].says(f"version {name}", f"{name} {value}") for host, value in sorted(values.items())]
        yield at(rule, events[:6], odd, {"name": name, "version": usual, "odd": values[odd[0]]})


def timeouts(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """Different from node to node, or shorter than nodes started apart."""
    among = several(run)
    for name in _TIMEOUTS:
        values = {host: node.settings[name] for host, node in among.items() if name in node.settings}
        if values and (len(set(values.values())) > 1 or len(values) < len(among)):
            longest = str(max((number for value in values.values() if (number := _number(value))), default=600))
            odd = [host for host in among if values.get(host) != longest]
            events = [
                among[host].says(f"env {name}", f"{name}={values.get(host, 'not set')}") for host in sorted(among)
            ]
            yield at(rule, events[:6], odd, {"name": name, "value": longest, "why": "differs between the hosts"})
    skew = [value for node in among.values() if isinstance(value := node.value("started"), int | float)]
    apart = max(skew) - min(skew) if len(skew) > 1 else 0.0
    for host, node in among.items():
        limit = _join_timeout(node.launch.get("rdzv_conf", ""))
        if limit is not None and limit < apart:
            event = node.says("launch", f"join_timeout={limit} s, and the hosts started {apart:.0f} s apart")
            fields = {
                "name": "--rdzv-conf join_timeout",
                "value": str(int(apart * 3) + 60),
                "why": f"is shorter than the {apart:.0f} s that hosts start apart",
            }
            yield at(rule, [event], [host], fields)


def _join_timeout(text: str) -> int | None:
    found = re.search(r"(?:join_)?timeout=(\d{1,7})\b", text)
    return int(found.group(1)) if found else None


# -- limits --------------------------------------------------------------------------------------------------------


def locked_memory(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """RDMA pins its buffers: with a small limit registering them fails."""
    among = nodes(run)
    for node in among.values():
        soft = _limit(node, "memlock")
        if soft is not None and soft < _MIN_LOCKED and any(True for _ in node.named("rdma ")):
            event = node.says("limit memlock", f"ulimit -l is {soft >> 10} KiB, and there are RDMA devices")
            yield at(rule, [event], [node.host], {"limit": f"{soft >> 10} KiB"})


def open_files(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """Every rank holds sockets to others: far too few files, or far fewer than the other hosts allow."""
    among = nodes(run)
    limits = {host: soft for host, node in among.items() if (soft := _limit(node, "nofile")) is not None}
    for host, soft in limits.items():
        size = max((_number(among[host].env.get("WORLD_SIZE")) or 0, len(among)))
        need = max(_MIN_FILES, _FILES_A_RANK * size)
        if soft < need:
            event = among[host].says("limit nofile", f"ulimit -n is {soft}, for {size} ranks at least {need}")
            yield at(rule, [event], [host], {"limit": str(soft), "need": str(max(need, 65_536))})


def _limit(node: Node, name: str) -> int | None:
    value = node.value(f"limit {name}")
    return value[0] if isinstance(value, list) and value and type(value[0]) is int else None


def shared_memory(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """NCCL and data loaders put their buffers there; a container has 64 MB of it unless told otherwise."""
    for node in nodes(run).values():
        size = node.mapping("shm").get("size")
        if type(size) is int and size <= _MIN_SHM:
            event = node.says("shm", f"/dev/shm has {size >> 20} MB")
            yield at(rule, [event], [node.host], {"size": f"{size >> 20} MB"})


# -- what stands between -------------------------------------------------------------------------------------------


def sidecar(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """A service mesh's proxy takes all connections of the pod."""
    for node in nodes(run).values():
        taken = [port for port in _PORTS_OF_SIDECARS if port in node.numbers("listening")]
        if len(taken) > 1:
            name = _PORTS_OF_SIDECARS[taken[0]]
            event = node.says("listening", f"ports {listed(map(str, taken))} are listened on, as {name} does")
            yield at(rule, [event], [node.host], {"name": name})


def plugin_missing(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """What a variable names is not there: NCCL falls back to TCP, or ignores the topology, silently."""
    for node in nodes(run).values():
        for variable, value in _missing_files(node):
            event = node.says(f"file {variable}", f"{variable}={value}: not found on {node.host}")
            yield at(rule, [event], [node.host], {"variable": variable, "value": plain(value)})


def _missing_files(node: Node) -> Iterator[tuple[str, str]]:
    for variable, about in node.named("file "):
        if isinstance(about, Mapping) and about.get("there") is False and uses_nccl(node):
            yield variable, str(about.get("value"))

"""A node's limits and health: memory, files, disks, clock; GPUs and their links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paramedic.detect.nodes import Node, nodes, on_facts, size
from paramedic.knowledge import Rule
from paramedic.model import Fact, Finding, Run, Severity

_GIB = 1 << 30
_FATAL_XIDS = {"48", "62", "63", "64", "74", "79", "92", "94", "95", "119", "120", "140", "143", "145"}
"""Memory, link and bus errors, and a GPU that does not answer; most others are the program's own doing."""


def shared_memory(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        there = node.number("disk /dev/shm size")
        if there is not None and there < _GIB:
            yield on_facts(rule, [node.facts["disk /dev/shm size"]], {"size": size(there)})


def open_files(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """1,024 is the usual default: enough for one small node, and the first limit that many workers meet."""
    for node in nodes(run):
        limit = node.number("limit open files")
        if limit is not None and 0 <= limit < 4096:
            severity: Severity = "warning" if limit < 1024 else "info"
            hard = node.number("hard limit open files")
            fields = {"limit": f"{limit:.0f}", "hard": "unlimited" if hard in (None, -1) else f"{hard:.0f}"}
            yield on_facts(rule, [node.facts["limit open files"]], fields, severity=severity)


def locked_memory(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """RDMA registers memory, which is locked by that."""
    for node in nodes(run):
        limit = node.number("limit locked memory")
        if limit is not None and 0 <= limit < _GIB and any(node.below("rdma")):
            yield on_facts(rule, [node.facts["limit locked memory"]], {"limit": size(limit)})


def processes(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        for name in ("limit processes", "cgroup processes"):
            limit = node.number(name)
            if limit is not None and 0 <= limit < 2048:
                yield on_facts(rule, [node.facts[name]], {"limit": f"{limit:.0f}", "where": node.facts[name].source})


def container_memory(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The container may use much less than the host shows, and is near its end already, or has little at all."""
    for node in nodes(run):
        limit, used, host = (node.number(name) for name in ("cgroup memory", "cgroup memory used", "host memory"))
        if limit is None or host is None or limit >= host:
            continue
        gpus = node.number("gpu count") or 0
        if limit < gpus * 8 * _GIB or (used is not None and limit - used < _GIB):
            fields = {"limit": size(limit), "host": size(host), "used": size(used or 0)}
            yield on_facts(rule, [node.facts["cgroup memory"]], fields)


def cores(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Fewer usable cores than GPUs: as many ranks cannot even feed their devices."""
    for node in nodes(run):
        usable, gpus = node.number("host usable cores"), node.number("gpu count")
        allowed = min(filter(None, (usable, node.number("cgroup cores"))), default=None)
        if allowed is not None and gpus and allowed < gpus:
            fields = {"cores": f"{allowed:g}", "gpus": f"{gpus:.0f}", "all": str(node.get("host cores"))}
            yield on_facts(rule, [node.facts["host usable cores"]], fields)


def disk(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        for name in ("temporary folder", "home"):
            free, files = node.number(f"disk {name} free"), node.number(f"disk {name} free files")
            fact = node.facts.get(f"disk {name} free")
            if fact and free is not None and (free < _GIB or files == 0):
                left = size(free) if files != 0 else "no entry for another file"
                yield on_facts(rule, [fact], {"what": name, "path": fact.source, "free": left})


def not_writable(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        for name in ("/dev/shm", "temporary folder", "home"):
            fact = node.facts.get(f"disk {name} writable")
            if fact and fact.value is False:
                severity: Severity = "warning" if name == "home" else "error"
                yield on_facts(rule, [fact], {"what": name, "path": fact.source}, severity=severity)


def rdma_port(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A port that is not active while others of this node are. All down may be a node without a fabric."""
    for node in nodes(run):
        states = {name.rsplit(" ", 1)[0]: fact for name, fact in node.below("rdma") if name.endswith(" state")}
        down = {name: fact for name, fact in states.items() if "ACTIVE" not in str(fact.value)}
        if down and len(down) < len(states):
            fields = {"ports": ", ".join(down), "state": str(next(iter(down.values())).value)}
            yield on_facts(rule, list(down.values()), fields)


# -- GPUs ----------------------------------------------------------------------------------------------------------


def _each(node: Node, name: str) -> Iterator[tuple[int, Fact]]:
    for number in range(int(node.number("gpu count") or 0)):
        fact = node.facts.get(f"gpu {number} {name}")
        if fact is not None:
            yield number, fact


def uncorrected(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        for number, fact in _each(node, "uncorrected errors"):
            if isinstance(fact.value, int) and fact.value > 0:
                yield on_facts(rule, [fact], {"gpu": str(number), "count": str(fact.value)})


def remapping(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        for number, fact in _each(node, "remap pending"):
            if fact.value is True:
                yield on_facts(rule, [fact], {"gpu": str(number)})


def throttled(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        for number, fact in _each(node, "throttled"):
            if isinstance(fact.value, list) and fact.value:
                degrees = node.get(f"gpu {number} temperature")
                fields = {"gpu": str(number), "why": ", ".join(map(str, fact.value)), "degrees": str(degrees)}
                yield on_facts(rule, [fact], fields)


def nvlinks(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Fewer links up than on its neighbours of the same kind."""
    for node in nodes(run):
        up = dict(_each(node, "nvlinks up"))
        most = max((fact.value for fact in up.values() if isinstance(fact.value, int)), default=0)
        for number, fact in up.items():
            if isinstance(fact.value, int) and fact.value < most:
                yield on_facts(rule, [fact], {"gpu": str(number), "up": str(fact.value), "most": str(most)})


def pcie_width(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        for name, fact in node.below("pci"):
            device = name.removesuffix(" current_link_width")
            most = node.number(f"pci {device} max_link_width")
            if device != name and most and isinstance(fact.value, int) and 0 < fact.value < most:
                yield on_facts(rule, [fact], {"device": device, "width": str(fact.value), "most": f"{most:.0f}"})


def xid(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        seen = node.get("xid")
        for text in seen if isinstance(seen, list) else ():
            number = str(text).split(" ", 1)[0]
            severity: Severity = "warning" if number in _FATAL_XIDS else "info"
            yield on_facts(rule, [node.facts["xid"]], {"xid": number, "said": str(text)}, severity=severity)


def lost(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """One that the driver cannot open. That the bus shows more may be a container that was given some only: a note."""
    for node in nodes(run):
        count, bus = node.number("gpu count"), node.number("pci gpus")
        gone = [str(number) for number, _ in _each(node, "lost")]
        if count is not None and (gone or (bus and bus > count > 0)):
            facts = [node.facts[name] for name in ("gpu count", "pci gpus") if name in node.facts]
            fields = {"count": f"{count - len(gone):.0f}", "bus": f"{bus or count:.0f}"}
            yield on_facts(rule, facts, fields, severity="error" if gone else "info")


def occupied(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        for number, fact in _each(node, "memory used"):
            whole = node.number(f"gpu {number} memory")
            if whole and isinstance(fact.value, int) and fact.value > whole / 10:
                yield on_facts(rule, [fact], {"gpu": str(number), "used": size(fact.value), "whole": size(whole)})


def wrong_sums(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The same product came out differently, or far from the processor's, or not at all."""
    for node in nodes(run):
        for device, fact in node.below("selftest"):
            said = fact.value if isinstance(fact.value, dict) else {}
            if said.get("failed"):
                yield on_facts(rule, [fact], {"device": device, "how": str(said["failed"])})
            elif said.get("same") is False or said.get("right") is False:
                how = "results differ from run to run" if said.get("same") is False else "the result is far off"
                yield on_facts(rule, [fact], {"device": device, "how": how})


def slow_device(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        speeds = {
            device: (float(fact.value["gflops"]), fact)
            for device, fact in node.below("selftest")
            if isinstance(fact.value, dict) and isinstance(fact.value.get("gflops"), int | float)
        }
        most = max((speed for speed, _ in speeds.values()), default=0.0)
        for device, (speed, fact) in speeds.items():
            if speed < most * 0.7:
                yield on_facts(rule, [fact], {"device": device, "share": f"{speed / most:.0%}"})

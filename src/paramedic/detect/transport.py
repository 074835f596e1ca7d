"""What NCCL says it sends over, held against what the record shows the machines to have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from paramedic.detect.hostnames import short
from paramedic.detect.interrupted import TIME_LIMIT
from paramedic.detect.match import on_events
from paramedic.detect.once import once
from paramedic.detect.places import NCCL_PROCESS
from paramedic.detect.recordings import odd_ones
from paramedic.detect.where import places, whole_blocks
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_SOCKETS = "NCCL INFO Using network Socket"
_BETWEEN = regex(r"\bvia NET/Socket/\d")
_WHY = (
    (regex(r"NCCL_IB_DISABLE(?: set by environment to|=) ?1\b"), "communication-backend-misconfiguration"),
    (
        regex(r"(?:Failed to open|cannot open) libibverbs|libibverbs\.so\S{0,8}: cannot open"),
        "missing-or-misresolved-dependency",
    ),
    (regex(r"Could not find: ?libnccl-net|No plugin found \(libnccl-net"), "missing-or-misresolved-dependency"),
)
"""The surest first: that there is no plugin NCCL says on nearly every machine."""
_FABRIC = regex(
    r"Link layer: InfiniBand|\bmlx5\w*\b[^\n]{0,40}\b(?:Active|[HNEX]DR\d{0,3})\b"
    r"|NET/IB : Using \[|NET/OFI Selected|[Pp]rovider is efa|FI_PROVIDER\W{1,3}efa|\bFI_EFA_\w|\b(?:\d{1,3} )?EFA\b"
    r"|\bNCCL_IB_HCA\W{1,12}(?:value\W{1,4})?=?mlx5|\brdma/[a-z]\w{2,40}\W{1,4}[1-9]|\buverbs\d{1,3}$|\brdmap\d{1,4}s\d|\bp(?:4de?|5e?n?|6-b\d00)\.\d{1,3}xlarge|\ba3-(?:high|mega|ultra)gpu|\bStandard_ND\w{0,12}rs?_"
)
"""Adapters, settings for them, and machines that clouds sell with them."""
_COMPARED = regex(r"\b(?:expected|baseline|should be|was|last week|before)\b\D{0,40}(\d[\d,.]{0,12})", re.I)
_FIGURE = regex(r"(?<![\w.])\d{1,9}(?:\.\d{1,6})?(?=m?s\b|m?s/| |$)")
_SLOWER = 3.0
_NAMED = 20.0
_MAY_BE_MEANT = 0.5
"""Many machines have no faster way at all."""


def sockets_beside_rdma(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Nodes talk over sockets, while some machine of the record has RDMA, the program says how fast it should be, or
    it mostly waits and somebody has switched the faster way off."""
    if _failed(run, found):
        return
    lines = run.of_kind("line")
    now = [event for event in lines if event.attempt == _last(run)]
    sockets = [
        (event, by[1])
        for event in now
        if (by := NCCL_PROCESS.match(event.text)) and event.text.startswith(_SOCKETS, by.end())
    ]
    between = [event for event in now if _BETWEEN.search(event.text)]
    if not between and len({host for _, host in sockets}) < 2:
        return
    reasons = [*_none_of_that_name(run), *((e, cause) for why, cause in _WHY for e in now if why.search(e.text))]
    fabric = next((event for event in lines if _FABRIC.search(event.text)), None) or _said_to_be_slow(run)
    slow = next((one.evidence[0].event for one in found if one.severity == "error"), None)
    fabric = fabric or (slow if reasons else None)
    over = sockets[0][0] if sockets else between[0]
    why = [event for event, _ in reasons[:1]]
    if fabric is None and not why:
        return
    though = ", though the record shows a faster network or a much faster run" if fabric else ""
    one = on_events(rule, [over, fabric, *why] if fabric else [over, *why], (), {"though": though})
    one = replace(one, weights={cause: _NAMED for _, cause in reasons[:1]})
    yield one if fabric else replace(one, severity="info", confidence=_MAY_BE_MEANT)


def _none_of_that_name(run: Run) -> list[tuple[Event, str]]:
    """NCCL has the library and was told by name which adapters to take, and finds none of them."""
    named = [event for event in run.saying("NCCL_IB_HCA", "line") if _ADAPTERS.search(event.text)]
    none = run.saying("NET/IB : No device found", "line")
    return [(named[0], "communication-backend-misconfiguration")] if named and none else []


_ADAPTERS = regex(r"\bNCCL_IB_HCA (?:is )?set (?:by environment )?to ")


def _failed(run: Run, found: Sequence[Finding]) -> bool:
    """Something worse than slowness, or than a time that was over, in the attempt that trained last."""
    errors = [one for one in found if one.severity == "error" and one.attempt >= _last(run)]
    return any(one.symptom != "low-throughput" and one.rule != TIME_LIMIT for one in errors)


@once
def _last(run: Run) -> int:
    return max((event.attempt for event in run.of_kind("progress")), default=0)


_PROVIDER = regex(r"MPI startup\(\): libfabric provider: (?P<name>[a-z]\w{1,20})")
_BY_TCP, _FASTER = ("tcp", "sockets", "net"), ("mlx", "verbs", "psm2", "psm3", "efa", "cxi", "opx", "gni")
_ASKED_FOR_TCP = regex(r"\b(?:FI_PROVIDER|I_MPI_OFI_PROVIDER)=(?:tcp|sockets|net)\b")


def mpi_over_tcp(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Intel MPI says at the start what it sends over: TCP between several hosts, while the record shows an adapter, or
    another run that had a faster way."""
    if _failed(run, found) or len(places(run).ranks_on) < 2:
        return
    said = [(e, by["name"]) for e in run.saying("libfabric provider: ", "line") if (by := _PROVIDER.search(e.text))]
    over = [(event, name) for event, name in said if name in _BY_TCP]
    slow = {event.source for event, _ in over}
    faster = [event for event, name in said if name in _FASTER and event.source not in slow]
    if not over:
        return
    lines = run.of_kind("line")
    fabric = faster[:1] or [event for event in lines if _FABRIC.search(event.text)][:1]
    asked = [event for event in lines if _ASKED_FOR_TCP.search(event.text)][:1]
    if fabric:
        one = on_events(rule, [over[0][0], *fabric, *asked], (), {"provider": over[0][1]})
        yield replace(one, weights={"communication-backend-misconfiguration": _NAMED}) if asked else one


def peer_to_peer_off(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """GPUs of a host that NVLink joins exchange through its memory: somebody has switched the direct way off."""
    if _failed(run, found):
        return
    lines = run.of_kind("line")
    off = next(((event, said) for event in lines if (said := _OFF.search(event.text))), None)
    links = next((event for event in lines if _LINKS.search(event.text)), None)
    unjoined = links is None and any(_TOPOLOGY.match(event.text) for event in lines)
    if off is None or unjoined or any(_PEERS in event.text for event in lines):
        return
    through = [event for event in lines if _THROUGH in event.text]
    setting = f"{off[1]['name']}={off[1]['value']}"
    one = on_events(rule, [off[0], *through[:1], *([links] if links else [])], (), {"setting": setting})
    yield one if links else replace(one, severity="info", confidence=_MAY_BE_MEANT)


_OFF = regex(
    r"\b(?P<name>NCCL_P2P_(?:DISABLE|LEVEL))(?: set by environment to |=)(?P<value>(?<=DISABLE=)1|(?<=LEVEL=)LOC"
    r"|(?<=to )(?:1\b|LOC\b))"
)
_LINKS = regex(r"^GPU\d{1,2}\t.{0,200}\bNV\d{1,2}\b")
"""A row of `nvidia-smi topo -m`."""
_TOPOLOGY = regex(r"^GPU\d{1,2}\t")
_PEERS, _THROUGH = " via P2P/", " via SHM/"


def _said_to_be_slow(run: Run) -> Event | None:
    """A line of progress that names both what is and what should be, several times apart."""
    for event in run.of_kind("progress", "last"):
        if compared := _COMPARED.search(event.text):
            expected = float(compared[1].replace(",", "").rstrip(".") or 0)
            values = _FIGURE.findall(event.text[: compared.start()])
            said = float(values[-1]) if values else 0.0
            if expected > 0 and said > 0 and max(said / expected, expected / said) >= _SLOWER:
                return event
    return None


def other_version(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """NCCL found two versions of itself, and most ranks have the one, so that those with the other stand out."""
    refused = next((one for one in found if one.rule == _MISMATCH), None)
    if refused is None:
        return
    told = run.saying("Mismatched NCCL version", "line", "traceback")
    said = {int(rank): int(code) for event in told for rank, code in _HAS.findall(event.text)}
    banners = ((e.rank, _BANNER.search(e.text), e) for e in run.saying("NCCL version", "line"))
    shown = {rank: (found, event) for rank, found, event in banners if rank is not None and found is not None}
    versions = {rank: _code(found) for rank, (found, _) in shown.items()} | said
    odd = odd_ones(versions) if len(versions) >= _ENOUGH else []
    if odd:
        events = [refused.evidence[0].event, *(shown[rank][1] for rank in odd[:1] if rank in shown)]
        usual = next(code for rank, code in versions.items() if rank not in odd)
        fields = {"accused": ", ".join(map(str, odd)), "own": _dotted(versions[odd[0]]), "usual": _dotted(usual)}
        there = sorted(host for host, ranks in places(run).ranks_on.items() if ranks and ranks <= set(odd))
        fields |= {"hosts": ",".join(there)} if there else {}
        yield on_events(rule, events, odd, fields)


_MISMATCH, _ENOUGH = "NET026", 3
_HAS = regex(r"\brank (\d{1,6}) version (\d{4,6})\b")
_BANNER = regex(r"\bNCCL version (\d{1,2})\.(\d{1,2})\.(\d{1,2})\b")


def _code(found: re.Match[str]) -> int:
    """As NCCL numbers itself since 2.9."""
    major, minor, patch = map(int, found.groups())
    return 10_000 * major + 100 * minor + patch


def _dotted(code: int) -> str:
    return f"{code // 10_000}.{code // 100 % 100}.{code % 100}"


def met_over_a_local_link(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Some hosts offer the others an address that is known on their own link only, as a service processor's is, or that
    of a bridge within the host; what says that somebody could not connect there knows more."""
    told = list(_by_host(run, "NCCL INFO Bootstrap", _OFFERED))
    refused = any(one.severity == "error" and one.symptom.startswith("rendezvous-setup") for one in found)
    local = {
        host: (said[1], event)
        for host, said, event in told
        if said[2].startswith(_LINK_LOCAL) or (_BRIDGE.fullmatch(said[1]) and not refused)
    }
    others = [event for host, _, event in told if host not in local]
    if not local or not others:
        return
    ranks = _ranks_on(run, local)
    name, event = next(iter(local.values()))
    fields = {"host": ", ".join(sorted(local)), "interface": name, "accused": ", ".join(map(str, ranks))}
    usual = {said[1] for host, said, _ in told if host not in local}
    fields |= {"shared": usual.pop()} if len(usual) == 1 else {}
    yield on_events(rule, [event, others[0]], ranks, fields)


_OFFERED = regex(r"NCCL INFO Bootstrap ?: Using (?:\[\d\])?([\w.-]{1,32}):([\da-f.:]{2,45})<\d")
_BRIDGE = regex(r"docker\d{1,3}|br-[0-9a-f]{12}|virbr\d{1,3}|lxcbr\d|cni\d{1,3}|podman\d|veth\w{1,12}|lo")
_LINK_LOCAL = ("169.254.", "fe80:")


def same_address_on_hosts(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Several hosts offer one and the same address: each finds itself there, and nobody else."""
    offered: dict[str, dict[str, tuple[str, Event]]] = {}
    for host, said, event in _by_host(run, "NCCL INFO Bootstrap", _OFFERED):
        if not said[2].startswith((*_LINK_LOCAL, *_LOOPBACK)):
            offered.setdefault(said[2], {}).setdefault(host, (said[1], event))
    for address, hosts in offered.items():
        if len(hosts) > 1:
            (name, _), *_ = hosts.values()
            fields = {"hosts": str(len(hosts)), "interface": name, "address": address}
            yield on_events(rule, [event for _, event in hosts.values()][:4], (), fields)
            return


_LOOPBACK = ("127.", "::1")


class _Port(NamedTuple):
    host: str
    name: str
    rate: float
    lanes: str
    event: Event


def slow_port(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Of adapters' ports that have one name on several hosts a few run at a fraction of the others' rate, or one runs
    over fewer lanes than all others do."""
    ports = list(_ports(run))
    slow = [port for port in ports if _below_its_peers(port, ports)]
    if not slow or _FEW_PORTS * len(slow) > len(ports):
        return
    worst = slow[0]
    usual = max(port.rate for port in ports)
    others = [port.event for port in ports if port.rate == usual]
    fields = {
        "port": worst.name,
        "host": worst.host.rsplit("/", 1)[-1],
        "rate": f"{worst.rate:.0f}",
        "usual": f"{usual:.0f}",
        "hosts": "",
    }
    if worst.host != worst.event.source:
        fields |= {"node": fields["host"], "hosts": fields["host"]}
    yield on_events(rule, [worst.event, *others[:2]], (), fields)


def _ports(run: Run) -> Iterator[_Port]:
    """As `ibstatus`, `ibstat` and lists of sysfs show them; the host stands above, where the line does not name it."""
    rated = (event for words in ("b/sec", "ate:") for event in run.saying(words, "line"))
    telling = {event.source for event in rated if _RATE.search(event.text)}
    host = name = source = ""
    for event in run.of_kind("line") if telling else ():
        if event.source not in telling:
            continue
        if event.source != source:
            host, name, source = "", "", event.source
        if (above := _HOST_ABOVE.match(event.text)) is not None:
            host = above[1] or above[2]
        if (device := _DEVICE.search(event.text)) is not None:
            name = device[1]
        if name and (rate := _RATE.search(event.text)) is not None:
            told = float(rate["rate"] or rate["bare"])
            yield _Port(event.host or host or source, name, told, rate["lanes"] or "", event)


def _below_its_peers(one: _Port, ports: Sequence[_Port]) -> bool:
    fewer = one.lanes in ("1", "2") and sum(port.lanes not in ("", one.lanes) for port in ports) >= _SEVERAL_PORTS
    elsewhere = [port.rate for port in ports if port.name == one.name and port.host != one.host]
    return fewer or (bool(elsewhere) and 2 * one.rate <= min(elsewhere))


_HOST_ABOVE = regex(
    r"^(?:[-=#\s]{1,6}|\[?\w{1,20}@)([a-z][\w.-]{1,60}?)(?::| |~|\]|$)|^([a-z][\w.-]{1,60}): CA '", re.I
)
_DEVICE = regex(r"\b((?:mlx[45]|bnxt_re|irdma|rdmap|hfi1|ib)_?\d{1,3}[\w]{0,12})\b")
_RATE = regex(
    r"(?:^|[ \t])rate:? {0,4}(?P<rate>\d{1,4}(?:\.\d)?) Gb/sec(?: \((?P<lanes>\d{1,2})X [A-Z]{2,6}\))?"
    r"|(?:^\s{0,12}|LinkUp\s{1,4})Rate: (?P<bare>\d{1,4})\s*$",
    re.I,
)
_SEVERAL_PORTS, _FEW_PORTS = 3, 4


def not_direct_on_some(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """On most hosts adapters reach the GPUs' memory directly, and on a few through the hosts': all wait for those."""
    told = [(host, said[1] == "Enabled", event) for host, said, event in _by_host(run, "GPU Direct RDMA", _DIRECT)]
    direct = {host for host, enabled, _ in told if enabled}
    without = {host: event for host, enabled, event in told if not enabled and host not in direct}
    if not without or len(without) >= len(direct):
        return
    ranks = _ranks_on(run, without)
    events = [*without.values(), next(event for _, enabled, event in told if enabled)]
    module = [event for event in run.of_kind("line", "complaint") if _MODULE.search(event.text)]
    fields = {"host": ", ".join(sorted(without)), "accused": ", ".join(map(str, ranks))}
    one = on_events(rule, [*events[:3], *module[:1]], ranks, fields)
    yield replace(one, weights={"missing-or-misresolved-dependency": _NAMED} if module else {})


_DIRECT = regex(r"GPU Direct RDMA (Enabled|Disabled) for HCA")
_MODULE = regex(r"\bnv(?:idia)?_peer_?mem\b")


def _by_host(run: Run, words: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str], Event]]:
    """Who says it, by NCCL's own prefix."""
    for event in run.saying(words, "line"):
        if (by := NCCL_PROCESS.match(event.text)) and (said := pattern.search(event.text)):
            yield by[1], said, event


def _ranks_on(run: Run, hosts: Iterable[str]) -> list[int]:
    known = whole_blocks(run)
    return sorted({rank for host in hosts for rank in known.get(short(host), ())})

"""RDMA adapters, GPUs and the PCI tree, by sysfs: settings that NCCL would accept and suffer from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paramedic.detect.network import Found, at, several
from paramedic.detect.topology import Node, listed, majority, nodes, plain
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run

_SLOW = 0.25
"""A port below this part of the fastest one's rate is not meant for training."""


def ports(node: Node) -> dict[str, Mapping[str, Any]]:
    """`mlx5_0/1` → what sysfs says."""
    return {name: value for name, value in node.named("rdma ") if isinstance(value, Mapping)}


def active(node: Node) -> dict[str, Mapping[str, Any]]:
    return {name: port for name, port in ports(node).items() if port.get("state") == "ACTIVE"}


def rate(port: Mapping[str, Any]) -> float:
    value = port.get("gbps")
    return float(value) if isinstance(value, int | float) else 0.0


def good_ports(node: Node) -> list[str]:
    """Active and fast: what NCCL should use."""
    there = active(node)
    fastest = max(map(rate, there.values()), default=0.0)
    return sorted(name for name, port in there.items() if rate(port) >= _SLOW * fastest)


def hca_list(names: Sequence[str]) -> str:
    """As NCCL_IB_HCA wants it: `=mlx5_0:1,mlx5_1:1`."""
    return "=" + ",".join(name.replace("/", ":") for name in names) if names else "<ports that are ACTIVE>"


def filtered(node: Node) -> tuple[list[str], list[str]] | None:
    """(ports that NCCL_IB_HCA selects, names in it that select nothing); None where it is not set."""
    setting = node.settings.get("NCCL_IB_HCA", "")
    if not setting:
        return None
    exclude, exact = setting.startswith("^"), setting.lstrip("^").startswith("=")
    names = [part for part in setting.lstrip("^").lstrip("=").split(",") if part]
    hits = {name: [port for port in ports(node) if _hit(port, name, exact)] for name in names}
    chosen = {port for found in hits.values() for port in found}
    chosen = set(ports(node)) - chosen if exclude else chosen
    return sorted(chosen), [] if exclude else [name for name, found in hits.items() if not found]


def _hit(port: str, name: str, exact: bool) -> bool:
    device, _, number = name.partition(":")
    own, _, own_number = port.partition("/")
    return (own == device if exact else own.startswith(device)) and (not number or number == own_number)


def device_filter(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """NCCL_IB_HCA names what is not there, or takes in a management port."""
    for node in nodes(run).values():
        chosen = filtered(node)
        if chosen is None or not ports(node):
            continue
        good = good_ports(node)
        slow = [name for name in chosen[0] if name in active(node) and name not in good]
        if chosen[1]:
            why = f"names {listed(chosen[1])}, which is not there"
        elif slow and good:
            there = ports(node)
            why = f"takes in {listed(slow)} with {rate(there[slow[0]]):g} Gb/s beside {rate(there[good[0]]):g}"
        elif not chosen[0]:
            why = "leaves no device"
        else:
            continue
        event = node.says(
            "env NCCL_IB_HCA", f"NCCL_IB_HCA={node.settings['NCCL_IB_HCA']}; ports: {listed(ports(node))}"
        )
        yield at(rule, [event], [node.host], {"why": why, "value": hca_list(good)})


def port_down(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """A port that peers have active is down here, or one that the settings choose."""
    among = nodes(run)
    for node in among.values():
        for name, port in ports(node).items():
            if port.get("state") == "ACTIVE":
                continue
            chosen = filtered(node)
            wanted = chosen is not None and name in chosen[0]
            peers = [other for other in among.values() if other is not node and name in active(other)]
            if wanted or (peers and len(peers) == len(among) - 1):
                text = f"{name}: {port.get('state')}, {port.get('physical')}"
                yield at(
                    rule,
                    [node.says(f"rdma {name}", text)],
                    [node.host],
                    {"port": name, "state": str(port.get("state"))},
                )


def switched_off(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """NCCL_IB_DISABLE was left on although there are active ports."""
    for node in nodes(run).values():
        there = active(node)
        if node.settings.get("NCCL_IB_DISABLE") == "1" and there:
            event = node.says("env NCCL_IB_DISABLE", f"NCCL_IB_DISABLE=1; active: {listed(there)}")
            yield at(rule, [event], [node.host], {"ports": listed(there)})


def gid_index(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """NCCL_IB_GID_INDEX points at no entry, or at one of RoCE v1, on an Ethernet port."""
    for node in nodes(run).values():
        setting = node.settings.get("NCCL_IB_GID_INDEX", "")
        if not (setting.isascii() and setting.isdigit()):
            continue
        for name, port in active(node).items():
            gids = [gid for gid in _gids(port) if gid.get("index") == int(setting)]
            kind = str(gids[0].get("type")) if gids else ""
            if port.get("link_layer") != "Ethernet" or "v2" in kind:
                continue
            good = next(
                (str(gid.get("index")) for gid in _gids(port) if _is_v2_of_ip4(gid)), "<index of a RoCE v2 entry>"
            )
            what = f"is {kind}" if gids else "is not in its table"
            fields = {"port": name, "index": setting, "what": what, "good": good}
            yield at(rule, [node.says(f"rdma {name}", f"{name}: GID {setting} {what}")], [node.host], fields)
            break


def _gids(port: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    value = port.get("gids")
    return [gid for gid in value if isinstance(gid, Mapping)] if isinstance(value, list) else []


def _is_v2_of_ip4(gid: Mapping[str, Any]) -> bool:
    return "v2" in str(gid.get("type")) and "ffff:" in str(gid.get("gid"))


def partition_keys(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """InfiniBand ports of one job that share no partition."""
    among = several(run)
    keys = {host: frozenset(_keys(node)) for host, node in among.items()}
    known = {host: value for host, value in keys.items() if value}
    if len(known) < 2 or frozenset.intersection(*known.values()):
        return
    usual = majority(known) or known[min(known)]
    odd = [host for host, value in known.items() if value != usual]
    events = [among[host].says("rdma", f"P_Keys {listed(value)}") for host, value in sorted(known.items())]
    yield at(rule, events[:6], odd, {"keys": listed(known[odd[0]]), "usual": listed(usual)})


def _keys(node: Node) -> Iterator[str]:
    for port in active(node).values():
        keys = port.get("pkeys")
        if port.get("link_layer") == "InfiniBand" and isinstance(keys, list):
            yield from (key for key in keys if isinstance(key, str))


def traffic_class(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """NCCL_IB_TC and NCCL_IB_SL decide the switch's queue: set on some hosts only, traffic is treated unequally."""
    among = several(run)
    for name in ("NCCL_IB_TC", "NCCL_IB_SL"):
        values = {host: node.settings.get(name) for host, node in among.items()}
        given = {host: value for host, value in values.items() if value is not None}
        if given and len(set(values.values())) > 1:
            usual = majority(given) or given[min(given)]
            odd = [host for host, value in values.items() if value != usual]
            events = [
                among[host].says(f"env {name}", f"{name}={value or 'not set'}")
                for host, value in sorted(values.items())
            ]
            yield at(rule, events[:6], odd, {"name": name, "value": usual})


def redirected(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """PCI bridges with access control services on: GPUs reach each other and the adapter only through the processor."""
    for node in nodes(run).values():
        bridges = node.value("acs")
        gpus = node.value("gpus")
        if not isinstance(bridges, list) or not bridges or not isinstance(gpus, list) or not gpus:
            continue
        if len(gpus) > 1 or ports(node):
            names = listed(map(str, bridges), 3)
            event = node.says("acs", f"ACS redirects at {names}")
            fields = {"bridges": names, "count": str(len(bridges)), "bridge": plain(bridges[0])}
            yield at(rule, [event], [node.host], fields)


def far_adapter(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """NCCL_IB_HCA leaves a NUMA node's GPUs without the adapter that is beside them."""
    for node in nodes(run).values():
        chosen = filtered(node)
        gpus = node.value("gpus")
        if not chosen or not chosen[0] or not isinstance(gpus, list):
            continue
        used = {ports(node)[name].get("numa") for name in chosen[0]}
        near = dict(_by_numa(node))
        for place in sorted({gpu["numa"] for gpu in gpus if isinstance(gpu, Mapping) and type(gpu.get("numa")) is int}):
            if place not in used and place in near:
                text = f"GPUs on NUMA node {place}: NCCL_IB_HCA uses {listed(chosen[0])}, not {listed(near[place])}"
                fields = {"place": str(place), "near": listed(near[place]), "value": hca_list(good_ports(node))}
                yield at(rule, [node.says("env NCCL_IB_HCA", text)], [node.host], fields)
                break


def _by_numa(node: Node) -> Iterator[tuple[int, list[str]]]:
    good = good_ports(node)
    for place in {port.get("numa") for port in active(node).values()}:
        if type(place) is int and (names := [name for name in good if ports(node)[name].get("numa") == place]):
            yield place, names

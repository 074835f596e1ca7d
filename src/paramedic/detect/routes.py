"""MTUs of one network, and ways back that are others than the ways there, by the nodes' facts."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from paramedic.detect.network import Found, at, choices, network_of, several
from paramedic.detect.topology import IP, Network, Node, majority
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run


def mtu_differs(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """On one network, of the interfaces that the job would use."""
    among = several(run)
    sizes: dict[Network, dict[str, tuple[int, str]]] = {}
    for node in among.values():
        for _, chosen in choices(node):
            network = network_of(chosen)
            if network and chosen.interface:
                sizes.setdefault(network, {})[node.host] = (chosen.interface.mtu, chosen.interface.name)
    for network, hosts in sizes.items():
        if len({size for size, _ in hosts.values()}) < 2:
            continue
        usual = majority({host: size for host, (size, _) in hosts.items()}) or min(size for size, _ in hosts.values())
        odd = {host: one for host, one in hosts.items() if one[0] != usual}
        events = [among[host].says(f"interface {name}", f"{name} MTU {size}") for host, (size, name) in hosts.items()]
        size, name = next(iter(odd.values()))
        fields = {"network": str(network), "mtu": str(usual), "odd": str(size), "interface": name}
        yield at(rule, events[:6], odd, fields)


def reverse_path(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """Strict reverse-path filtering, and a route to a peer by another interface than its packets come in on."""
    among = several(run)
    for node in among.values():
        for peer in among.values():
            theirs, ours = peer.gloo.address, node.gloo
            if (
                peer is node
                or theirs is None
                or ours.interface is None
                or theirs.version != 4
                or ours.interface.loopback
            ):
                continue
            direct = any(theirs in address.network for address in ours.interface.carries)
            back = _route(node, theirs)
            if not direct or back is None or back[1] == ours.interface.name or not _strict(node, ours.interface.name):
                continue
            text = f"to {theirs} by {back[1]} ({back[0]}), from it on {ours.interface.name}; rp_filter is strict"
            fields = {"peer": peer.host, "route": back[0], "device": back[1], "interface": ours.interface.name}
            yield at(rule, [node.says("routes", text)], [node.host], fields)


def _strict(node: Node, interface: str) -> bool:
    """The kernel takes the larger of `all` and the interface's own; 2 is the loose one."""
    values = [value for name in ("all", interface) if isinstance(value := node.mapping("rp_filter").get(name), int)]
    return max(values, default=0) == 1


def _route(node: Node, to: IP) -> tuple[str, str] | None:
    """(destination, device) of the longest prefix."""
    best: tuple[int, str, str] | None = None
    value = node.value("routes")
    for route in value if isinstance(value, list) else ():
        if (
            not isinstance(route, dict)
            or not isinstance(route.get("to"), str)
            or not isinstance(route.get("device"), str)
        ):
            continue
        try:
            network = ipaddress.ip_network(route["to"])
        except ValueError:
            continue
        if to in network and (best is None or network.prefixlen > best[0]):
            best = (network.prefixlen, route["to"], route["device"])
    return best[1:] if best else None

"""Which interface, address and port each node would use, judged over all nodes' facts before anything is sent.

What gloo, NCCL and the store choose is worked out in `nodes`; here it is compared between the nodes.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from paramedic.detect.match import on_events
from paramedic.detect.topology import (
    IP,
    Address,
    Chosen,
    Interface,
    Network,
    Node,
    address_of,
    listed,
    majority,
    nodes,
    plain,
    shared_networks,
)
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run

Found = Iterator[Finding]
DEFAULT_PORT = 29500


def at(rule: Rule, events: Sequence[Event], hosts: Iterable[str], fields: Mapping[str, str]) -> Finding:
    """A finding about hosts; about the whole job where none is named."""
    who = tuple(sorted(set(hosts)))
    made = on_events(rule, events, (), {"host": listed(who), **fields})
    return replace(made, hosts=who, scope="host" if who else "job")


def several(run: Run) -> dict[str, Node]:
    """The nodes of a job that has more than one."""
    found = nodes(run)
    return found if len(found) > 1 else {}


def uses_nccl(node: Node) -> bool:
    return bool(node.value("gpus")) or any(name.startswith("NCCL_") for name in node.settings)


def choices(node: Node) -> Iterator[tuple[str, Chosen]]:
    yield "GLOO_SOCKET_IFNAME", node.gloo
    if uses_nccl(node):
        yield "NCCL_SOCKET_IFNAME", node.nccl


def good_interface(node: Node, among: Mapping[str, Node]) -> str:
    """What to name instead: the fastest of a network that all share."""
    best = next((one for network in shared_networks(among) if (one := node.best([network]))), None) or node.best()
    return best.name if best else "<an interface that reaches the other hosts>"


# -- interfaces ----------------------------------------------------------------------------------------------------


def loopback_name(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """gloo binds to what the host's own name resolves to, and that is the loopback."""
    among = several(run)
    for node in among.values():
        chosen = node.gloo
        if chosen.address is None or not chosen.address.is_loopback or node.env.get("GLOO_SOCKET_IFNAME"):
            continue
        line = next((line for line in _lines(node) if node.hostname in line.split()), "")
        events = [node.says(f"resolve {node.hostname}", f"{node.hostname} resolves to {_said(node, node.hostname)}")]
        events += [node.says("hosts_file", f"/etc/hosts: {line}")] if line else []
        fields = {"name": node.hostname, "address": str(chosen.address), "interface": good_interface(node, among)}
        yield at(rule, events, [node.host], fields)


def _lines(node: Node) -> list[str]:
    value = node.value("hosts_file")
    return [line for line in value if isinstance(line, str)] if isinstance(value, list) else []


def _said(node: Node, name: str) -> str:
    answers = node.resolved(name)
    return ", ".join(map(str, answers)) if answers else "nothing"


def leads_nowhere(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """A bridge for containers, or the loopback by name."""
    among = several(run)
    for node in among.values():
        for variable, chosen in choices(node):
            one = chosen.interface
            if one is None or chosen.missing or (one.loopback and not node.settings.get(variable)):
                continue
            why = _nowhere(one)
            if why:
                fields = {
                    "variable": variable,
                    "chosen": one.name,
                    "why": why,
                    "interface": good_interface(node, among),
                }
                yield at(
                    rule, [node.says(f"interface {one.name}", f"{chosen.why}: {described(one)}")], [node.host], fields
                )


def _nowhere(one: Interface) -> str:
    if one.loopback:
        return "is the loopback"
    if one.bridge:
        return "is a bridge for containers or virtual machines of this host"
    return ""


def described(one: Interface) -> str:
    addresses = ", ".join(f"{address.ip}/{address.prefix}" for address in one.addresses) or "no address"
    return f"{one.name} {'up' if one.up else 'down'}, MTU {one.mtu}, {addresses}"


def address_twice(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """Two hosts of one network have the same address: who is answered is chance."""
    owners: dict[Address, list[tuple[Node, Interface]]] = {}
    for node in several(run).values():
        for one in node.interfaces.values():
            for address in () if one.bridge else one.carries:
                owners.setdefault(address, []).append((node, one))
    for address, there in owners.items():
        if len({node.host for node, _ in there}) > 1:
            events = [node.says(f"interface {one.name}", described(one)) for node, one in there]
            taken = {ip for node in several(run).values() for ip in node.own}
            free = next((ip for ip in reversed(list(islice(address.network.hosts(), 250))) if ip not in taken), None)
            second, one = there[-1]
            fields = {
                "address": f"{address.ip}/{address.prefix}", "interface": one.name, "second": second.host,
                "free": f"{free}/{address.prefix}" if free else "<a free address>",
            }  # fmt: skip
            yield at(rule, events, [node.host for node, _ in there], fields)


def interface_absent(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    among = nodes(run)
    for node in among.values():
        for variable, chosen in choices(node):
            if not chosen.missing:
                continue
            have = listed(name for name, one in node.interfaces.items() if one.carries) or "none"
            one = node.interfaces.get(chosen.missing[0])
            state = "is not there" if one is None else "is down" if not one.up else "has no address"
            if variable == "GLOO_SOCKET_IFNAME" and chosen.missing[0][:1] in "^=":
                state = "is no name: gloo knows neither ^ nor ="
            fields = {
                "variable": variable, "value": chosen.missing[0], "state": state, "have": have,
                "interface": good_interface(node, among),
            }  # fmt: skip
            events = [
                node.says(f"env {variable}", chosen.why),
                node.says("routes", f"interfaces with an address: {have}"),
            ]
            yield at(rule, events, [node.host], fields)


def prefix_matches_several(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """`eth` is eth0 and eth1 to NCCL, and they are on different networks."""
    among = several(run)
    for node in among.values():
        setting = node.settings.get("NCCL_SOCKET_IFNAME", "")
        matched = [one for one in node.nccl_all if one.carries]
        networks = {address.network for one in matched for address in one.carries if address.ip.version == 4}
        if setting and setting[0] not in "^=" and "," not in setting and len(matched) > 1 and len(networks) > 1:
            names = listed(one.name for one in matched)
            fields = {"value": setting, "names": names, "interface": good_interface(node, among)}
            event = node.says("env NCCL_SOCKET_IFNAME", f"NCCL_SOCKET_IFNAME={setting} matches {names}")
            yield at(rule, [event], [node.host], fields)


def unlike_networks(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """The nodes would use different networks; in a trial with two ranks that may even work."""
    among = several(run)
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        used = {
            node.host: (node, chosen) for node in among.values() for name, chosen in choices(node) if name == variable
        }
        networks = {host: net for host, (_, chosen) in used.items() if (net := network_of(chosen)) is not None}
        if len(set(networks.values())) < 2 or _routed(among, networks):
            continue
        usual = majority(networks) or next(iter(shared_networks(among)), None)
        odd = [host for host, network in networks.items() if network != usual] if usual else list(networks)
        same = {good_interface(among[host], among) for host in networks}
        events = [
            among[host].says(f"env {variable}", f"{used[host][1].why}: {networks[host]}") for host in sorted(networks)
        ]
        for name in sorted(same):
            fields = {
                "variable": variable,
                "networks": listed(map(str, set(networks.values()))),
                "interface": name,
                "exports": exports(among, variable, name),
            }
            yield at(rule, events[:6], [host for host in odd if good_interface(among[host], among) == name], fields)


def network_of(chosen: Chosen) -> Network | None:
    if chosen.interface is None or chosen.address is None or chosen.interface.loopback or chosen.interface.bridge:
        return None
    return next((one.network for one in chosen.interface.addresses if one.ip == chosen.address), None)


def _routed(among: Mapping[str, Node], networks: Mapping[str, Network]) -> bool:
    """Every node has a route through a gateway to every other's network: so it is built, as in a fat tree."""
    return all(
        network == own
        or any(ipaddress.ip_network(to).supernet_of(network) for to in _routes(among[host], network.version))  # type: ignore[arg-type]
        for host, own in networks.items()
        for network in set(networks.values())
    )


def _routes(node: Node, version: int) -> Iterator[str]:
    """Through gateways."""
    value = node.value("routes")
    for route in value if isinstance(value, list) else ():
        to = route.get("to") if isinstance(route, dict) and route.get("gateway") else None
        if (
            isinstance(to, str)
            and address_of(to.split("/")[0]) is not None
            and ipaddress.ip_network(to).version == version
        ):
            yield to


def variables_disagree(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """GLOO, NCCL and TensorPipe are set to interfaces of different networks on one host."""
    for node in several(run).values():
        named = {name: node.settings[name] for name in _VARIABLES if node.settings.get(name)}
        picked = {
            name: one for name, text in named.items() if (one := node.interfaces.get(text.lstrip("=").split(",")[0]))
        }
        networks = {name: frozenset(address.network for address in one.carries) for name, one in picked.items()}
        if len(picked) < 2 or not all(networks.values()) or frozenset.intersection(*networks.values()):
            continue
        fastest = max(picked.values(), key=lambda one: one.speed or 0)
        slower = [name for name, one in picked.items() if one.name != fastest.name]
        events = [node.says(f"env {name}", f"{name}={text}") for name, text in named.items()]
        fields = {
            "variable": slower[0],
            "interface": fastest.name,
            "settings": ", ".join(f"{n}={t}" for n, t in named.items()),
        }
        yield at(rule, events, [node.host], fields)


_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


# -- the master ----------------------------------------------------------------------------------------------------


def master_of(node: Node) -> tuple[str, int] | None:
    """(name, port) as this node would use them; torchrun's arguments come before the environment."""
    endpoint = node.launch.get("rdzv_endpoint", "")
    name, port = endpoint, ""
    if ":" in endpoint.rpartition("]")[2]:
        name, _, port = endpoint.rpartition(":")
    name = name.strip("[]") or node.launch.get("master_addr") or node.env.get("MASTER_ADDR", "")
    port = port or node.launch.get("master_port") or node.env.get("MASTER_PORT", "") or str(DEFAULT_PORT)
    return (name, int(port) if port.isascii() and port.isdigit() and len(port) < 6 else 0) if name else None


def owner_of(ips: Iterable[IP], among: Mapping[str, Node]) -> Node | None:
    """The node that has one of these addresses on a network, not on a bridge that all have."""
    for ip in ips:
        there = [node for node in among.values() if ip in node.own and not ip.is_loopback]
        if len(there) == 1:
            return there[0]
    return None


def first_node(among: Mapping[str, Node]) -> Node | None:
    """The node of rank 0, where the nodes say which they are."""
    for name in ("RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID"):
        zero = [node for node in among.values() if node.env.get(name) == "0"]
        if len(zero) == 1:
            return zero[0]
    zero = [node for node in among.values() if node.launch.get("node_rank") == "0"]
    return zero[0] if len(zero) == 1 else None


def good_address(node: Node | None, among: Mapping[str, Node]) -> str:
    """Of the network that all share, on the given node or, where nobody is first, on any."""
    for network in shared_networks(among):
        for address in (a for one in (node or next(iter(among.values()))).interfaces.values() for a in one.carries):
            if address.network == network:
                return str(address.ip)
    return "<an address of rank 0's host that all hosts reach>"


def exports(among: Mapping[str, Node], variable: str, interface: str) -> str:
    """What to set on every host to meet on this interface: the master's address, too, where it is on another one."""
    lines = [f"export {variable}={plain(interface)}"]
    said = next((master for node in among.values() if (master := master_of(node))), None)
    ips = [ip for node in among.values() for ip in node.resolved(said[0]) or ()] if said else []
    owner = owner_of(ips, among) or first_node(among)
    there = owner.interfaces[interface].carries if owner and interface in owner.interfaces else ()
    if said and there and not any(address.ip in ips for address in there):
        lines.append(f"export MASTER_ADDR={there[0].ip}")
    return "\n".join(lines)


def master_unusable(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """Everybody is sent to the loopback, to an address that no node has, or to a node that is not rank 0's."""
    among = several(run)
    said = {node.host: master for node in among.values() if (master := master_of(node))}
    for name in sorted({name for name, _ in said.values()}):
        hosts = [host for host, (text, _) in said.items() if text == name]
        answers = {host: ips for host in hosts if (ips := among[host].resolved(name))}
        everyone = [ip for ips in answers.values() for ip in ips]
        owners = {owner.host for ips in answers.values() if (owner := owner_of(ips, among))}
        owner, first = owner_of(everyone, among), first_node(among)
        why = ""
        if everyone and all(ip.is_loopback for ip in everyone):
            why = "is the loopback: each host would look for rank 0 on itself"
        elif everyone and owner is None and not any(ip in node.own for ip in everyone for node in among.values()):
            why = "belongs to none of the job's hosts"
        elif owner and first and owners.isdisjoint([first.host]) and "rdzv_endpoint" not in owner.launch:
            why = f"belongs to {owner.host}, and rank 0 is on {first.host}"
        if why:
            host = among[hosts[0]]
            events = [host.says("env MASTER_ADDR", f"master {name} is {', '.join(map(str, dict.fromkeys(everyone)))}")]
            yield at(rule, events, hosts, {"master": name, "why": why, "address": good_address(first, among)})


def master_resolves_differently(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """Some nodes know the master's name as nothing, as themselves, or as another host than the rest do."""
    among = nodes(run)
    for name in sorted(
        {master[0] for node in among.values() if (master := master_of(node)) and not address_of(master[0])}
    ):
        answers = {node.host: ips for node in among.values() if (ips := node.resolved(name)) is not None}
        owners = {host: owner.host for host, ips in answers.items() if (owner := owner_of(ips, among))}
        right = majority(owners) or next(iter(owners.values()), None)
        if right is None:
            odd = [host for host, ips in answers.items() if not ips]
        else:
            odd = [host for host in answers if host != right and owners.get(host) != right]
        if not odd or (right is None and len(odd) < len(answers)):
            continue
        first = among[right] if right else first_node(among)
        events = [
            among[host].says(f"resolve {name}", f"{name} is {_said(among[host], name)}") for host in sorted(answers)
        ]
        yield at(
            rule,
            events[:6],
            odd,
            {"master": plain(name), "said": _said(among[odd[0]], name), "address": good_address(first, among)},
        )


def master_port_taken(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    among = nodes(run)
    for node in among.values():
        if (master := master_of(node)) is None:
            continue
        owner = owner_of(node.resolved(master[0]) or (), among) or first_node(among)
        own = owner is node or (len(among) == 1 and "MASTER_ADDR" in node.env)
        taken = set(node.numbers("listening"))
        if not own or (master[1] not in taken and 0 < master[1] < 1 << 16):
            continue
        free = next(port for port in range(DEFAULT_PORT, 65_000) if port not in taken)
        why = "is already listened on" if master[1] in taken else "is no port number"
        event = node.says("listening", f"port {master[1]} {why} on {node.host}")
        yield at(rule, [event], [node.host], {"port": str(master[1]), "why": why, "free": str(free)})


def family_mismatch(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """The master's address, or what most nodes use, is of a family that some node does not have."""
    among = several(run)
    masters = {node.host: master for node in among.values() if (master := master_of(node))}
    families = {
        host: {a.ip.version for one in node.interfaces.values() if not one.bridge for a in one.carries}
        for host, node in among.items()
    }
    common = frozenset.intersection(*map(frozenset, families.values())) if families else frozenset()
    for name in sorted({name for name, _ in masters.values()}):
        ip = address_of(name)
        wanted = {ip.version} if ip and not ip.is_loopback else _families(among, name)
        lacking = [host for host, there in families.items() if wanted and there and not there & wanted]
        if not lacking:
            continue
        version = max(wanted)
        first = owner_of([ip] if ip else [], among) or first_node(among)
        events = [
            among[host].says("routes", f"has only IPv{'/'.join(map(str, sorted(families[host])))} addresses")
            for host in lacking
        ]
        address = good_address(first, among) if common else "<an address of a family that all hosts have>"
        yield at(rule, events, lacking, {"master": name, "family": f"IPv{version}", "address": address})
        return
    used = {
        host: node.gloo.address.version
        for host, node in among.items()
        if node.gloo.address and not node.gloo.address.is_loopback
    }
    if len(set(used.values())) > 1 and not frozenset.intersection(*(frozenset(families[host]) for host in used)):
        odd = [host for host, version in used.items() if version != majority(used)]
        events = [among[host].says("routes", f"uses IPv{version}") for host, version in used.items()]
        yield at(
            rule,
            events[:6],
            odd,
            {"master": "the others", "family": f"IPv{majority(used) or 4}", "address": good_address(None, among)},
        )


def _families(among: Mapping[str, Node], name: str) -> set[int]:
    owners = [node.resolved(name) or [] for node in among.values()]
    return {ip.version for ips in owners for ip in ips if not ip.is_loopback}

"""Who could reach whom: what the nodes saw when each dialled the others, judged over all pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paramedic.detect.network import Found, at, described, exports
from paramedic.detect.once import once
from paramedic.detect.topology import Node, Pair, listed, nodes, pairs, plain
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run

Ends = tuple[str, str]
_BLOCKED = ("filtered", "refused", "timeout")


@dataclass(frozen=True, slots=True)
class Way:
    """All that was tried from one host to one other, at the address that the job would use."""

    ends: Ends
    tried: tuple[Pair, ...]

    @property
    def data(self) -> list[Pair]:
        return [pair for pair in self.tried if pair.role == "data"]

    @property
    def blocked(self) -> list[Pair]:
        return [pair for pair in self.data if pair.result in _BLOCKED]

    @property
    def master(self) -> Pair | None:
        return next((pair for pair in self.tried if pair.role == "master"), None)

    @property
    def open(self) -> bool:
        return any(pair.ok for pair in self.data)

    @property
    def bulk(self) -> Pair | None:
        return next((pair for pair in self.data if pair.mbps is not None or pair.stalled), None)


@once
def ways(run: Run) -> list[Way]:
    """Not of hosts that share an address with another one: who answers there is chance."""
    grouped: dict[Ends, list[Pair]] = {}
    doubtful = _doubtful(nodes(run).values())
    for pair in pairs(run):
        if pair.chosen and not doubtful & {pair.start, pair.end}:
            grouped.setdefault((pair.start, pair.end), []).append(pair)
    return [Way(ends, tuple(tried)) for ends, tried in grouped.items()]


def _doubtful(among: Iterable[Node]) -> set[str]:
    owners: dict[object, set[str]] = {}
    for node in among:
        for one in node.interfaces.values():
            for address in () if one.bridge else one.carries:
                owners.setdefault(address, set()).add(node.host)
    return {host for hosts in owners.values() if len(hosts) > 1 for host in hosts}


def said(run: Run, pair: Pair) -> Event:
    what = {
        "ok": "connects", "filtered": "no answer, though the host is there", "refused": "refused, though we listen",
        "timeout": "no answer", "unreachable": "cannot be reached", "other-host": "another host answers",
        "silent": "connects, but nobody speaks",
    }.get(pair.result, pair.result)  # fmt: skip
    if pair.stalled:
        what = f"connects, but large packets do not arrive ({'to' if pair.stalled == 'out' else 'from'} {pair.end})"
    text = f"{pair.start} → {pair.end} {pair.address} port {pair.port} ({pair.role}): {what}"
    return Event(pair.fact.source, 0, "network", text, host=pair.start)


def blamed(bad: Iterable[Ends], tried: Iterable[Ends], known: Mapping[str, Node], hook: bool = True) -> list[str]:
    """Hosts whose every way in, or every way out, is bad; else whoever's filter says so; else both ends."""
    bad, tried = set(bad), set(tried)
    with_filter = [end for end in {end for ends in bad for end in ends} if hook and drops(known.get(end))]
    into = [host for host in {end for _, end in bad} if all(e in bad for e in tried if e[1] == host)]
    out = [host for host in {start for start, _ in bad} if all(e in bad for e in tried if e[0] == host)]
    covers = [host for host in {*into, *out} if all(host in ends for ends in bad)]
    if len(covers) == 1:
        return covers
    both = [host for host in covers if host in with_filter]
    if both or with_filter:
        return sorted(both or with_filter)
    receiving = [host for host in into if host in covers]
    if len(receiving) == 1:
        return receiving
    return sorted(covers or {end for ends in bad for end in ends})


def drops(node: Node | None, *words: str) -> list[Mapping[str, Any]]:
    value = node.mapping("firewall").get("drops") if node else None
    found = [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
    found = [one for one in found if one.get("hook") != "forward"]
    return [one for one in found if all(word in str(one.get("text")) for word in words)]


def _filter_fields(node: Node | None, ports: str) -> dict[str, str]:
    """The command that lets these ports through, before the rule that drops them."""
    rules = drops(node)
    known = next((one for one in rules if one.get("hook") == "input"), rules[0] if rules else None)
    table, chain = (plain(known.get("table")), plain(known.get("chain"))) if known else ("inet filter", "input")
    if table == "iptables":
        return {
            "allow": f"iptables -I {chain} -p tcp --dport {ports.replace('-', ':')} -j ACCEPT",
            "rule": str(known and known.get("text")),
        }
    allow = f"nft insert rule {table} {chain} tcp dport {ports} accept"
    return {"allow": allow, "rule": str(known.get("text")) if known else "its rules could not be read"}


def filter_events(node: Node | None) -> list[Event]:
    return (
        [node.says("firewall", f"{one.get('table')} {one.get('chain')}: {one.get('text')}") for one in drops(node)[:2]]
        if node
        else []
    )


# -- connections ---------------------------------------------------------------------------------------------------


def master_port_filtered(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """The hosts reach each other, but not the master's port."""
    bad = [way for way in ways(run) if way.open and way.master and way.master.result in _BLOCKED]
    for host in sorted({way.ends[1] for way in bad}):
        there = [way for way in bad if way.ends[1] == host]
        tried = [way for way in ways(run) if way.ends[1] == host and way.master]
        node = nodes(run).get(host)
        who = [host] if len(there) == len(tried) else [way.ends[0] for way in there]
        port = str(there[0].master.port) if there[0].master else ""
        events = [*(said(run, way.master) for way in there[:3] if way.master), *filter_events(node)]
        yield at(
            rule,
            events,
            who,
            {"port": port, "from": listed(way.ends[0] for way in there), **_filter_fields(node, port)},
        )


def data_ports_filtered(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """Connections between ranks use any free port: those are dropped, whether or not the master's is open."""
    known = nodes(run)
    told = _refused_ways(found)
    bad = {way.ends: way for way in ways(run) if way.blocked and not _gone(way) and frozenset(way.ends) not in told}
    if not bad:
        return
    for host in blamed(bad, [way.ends for way in ways(run)], known):
        mine = [way for ends, way in bad.items() if host in ends]
        span = known[host].numbers("ephemeral") if host in known else []
        ports = f"{span[0]}-{span[1]}" if len(span) == 2 else "32768-60999"
        if not all(way.master is None or way.master.ok for way in mine):
            masters = {way.master.port for way in mine if way.master and way.ends[1] == host}
            ports = "{ " + ", ".join([*map(str, sorted(masters)), ports]) + " }" if masters else ports
        events = [*(said(run, way.blocked[0]) for way in mine[:3]), *filter_events(known.get(host))]
        others = listed({end for way in mine for end in way.ends} - {host})
        yield at(rule, events, [host], {"others": others, "ports": ports, **_filter_fields(known.get(host), ports)})


def _refused_ways(found: Sequence[Finding]) -> set[frozenset[str]]:
    """Pairs of whom facts alone have said that reverse-path filtering parts them."""
    return {frozenset((*one.hosts, one.fields["peer"])) for one in found if one.rule == "NET057"}


def _gone(way: Way) -> bool:
    """Nothing at all answers there: that is another matter than a filter."""
    return (
        not way.open
        and not (way.master and way.master.ok)
        and any(p.result in ("unreachable", "timeout") for p in way.data)
    )


def unreachable(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """No way at all between hosts at the addresses that they would use: another subnet, a cut, a wrong address."""
    known = nodes(run)
    told, refused = {host for one in found if one.rule == "NET041" for host in one.hosts}, _refused_ways(found)
    bad = {way.ends: way for way in ways(run) if _nowhere(way) and not told & set(way.ends)}
    bad = {ends: way for ends, way in bad.items() if frozenset(ends) not in refused}
    if not bad:
        return
    who = blamed(bad, [way.ends for way in ways(run)], known, hook=False)
    other = _other_network(run, {way.data[0].interface for way in bad.values() if way.data})
    events = [said(run, way.data[0]) for way in list(bad.values())[:4] if way.data]
    for node in [known[host] for host in who[:2] if host in known]:
        carrying = [one for one in node.interfaces.values() if one.carries]
        events += [node.says(f"interface {one.name}", described(one)) for one in carrying]
    pairs_said = listed(f"{start} → {end}" for start, end in bad)
    name = other or "<an interface on which all hosts meet>"
    yield at(rule, events, who, {"pairs": pairs_said, "exports": exports(known, "GLOO_SOCKET_IFNAME", name)})


def _nowhere(way: Way) -> bool:
    return (not way.open and _gone(way)) or any(pair.result == "other-host" for pair in way.data)


def _other_network(run: Run, used: set[str]) -> str:
    """An interface by whose addresses every pair that was tried did connect."""
    by: dict[str, dict[Ends, bool]] = {}
    for pair in pairs(run):
        if pair.interface not in used and pair.role == "data":
            ends = by.setdefault(pair.interface, {})
            ends[pair.start, pair.end] = ends.get((pair.start, pair.end), False) or pair.ok
    wanted = {way.ends for way in ways(run)}
    return next((name for name, ends in sorted(by.items()) if ends.keys() >= wanted and all(ends.values())), "")

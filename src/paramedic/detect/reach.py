"""Who could reach whom: what the nodes saw when each dialled the others, judged over all pairs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from paramedic.detect.network import Found, at
from paramedic.detect.topology import Node, Pair, listed, nodes, pairs
from paramedic.detect.once import once
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run

Ends = tuple[str, str]
_SLOW = 0.25
_CERTAINLY_FAST_MBPS = 2_000.0
"""Above this no path is called slow: what differs there is the machines' load."""
_LOST = 0.02
_LOST_AT_LEAST = 20
_HANDLE = re.compile(r"# handle (\d{1,9})")
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
    """An address that several hosts have says nothing about the way there."""
    grouped: dict[Ends, list[Pair]] = {}
    owners = Counter(str(ip) for node in nodes(run).values() for ip in node.own)
    for pair in pairs(run):
        if pair.chosen and owners[pair.address] < 2:
            grouped.setdefault((pair.start, pair.end), []).append(pair)
    return [Way(ends, tuple(tried)) for ends, tried in grouped.items()]


def said(run: Run, pair: Pair) -> Event:
    what = {
        "ok": "connects", "filtered": "no answer, though the host is there", "refused": "refused, though somebody listens",
        "timeout": "no answer", "unreachable": "cannot be reached", "other-host": "another host answers",
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
    table, chain = (str(known.get("table")), str(known.get("chain"))) if known else ("inet filter", "input")
    if table == "iptables":
        return {"allow": f"iptables -I {chain} -p tcp --dport {ports.replace('-', ':')} -j ACCEPT", "rule": str(known and known.get("text"))}
    lines = [f"nft insert rule {table} {chain} tcp dport {ports} accept"]
    return {"allow": "\n".join(lines), "rule": str(known.get("text")) if known else "its rules could not be read"}


def _filter_events(node: Node | None) -> list[Event]:
    return [node.says("firewall", f"{one.get('table')} {one.get('chain')}: {one.get('text')}") for one in drops(node)[:2]] if node else []


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
        events = [*(said(run, way.master) for way in there[:3] if way.master), *_filter_events(node)]
        yield at(rule, events, who, {"port": port, "from": listed(way.ends[0] for way in there), **_filter_fields(node, port)})


def data_ports_filtered(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """Connections between ranks use any free port: those are dropped, whether or not the master's is open."""
    known = nodes(run)
    bad = {way.ends: way for way in ways(run) if way.blocked and not _gone(way)}
    if not bad:
        return
    for host in blamed(bad, [way.ends for way in ways(run)], known):
        mine = [way for ends, way in bad.items() if host in ends]
        span = known[host].numbers("ephemeral") if host in known else []
        ports = f"{span[0]}-{span[1]}" if len(span) == 2 else "32768-60999"
        if not all(way.master is None or way.master.ok for way in mine):
            masters = {way.master.port for way in mine if way.master and way.ends[1] == host}
            ports = "{ " + ", ".join([*map(str, sorted(masters)), ports]) + " }" if masters else ports
        events = [*(said(run, way.blocked[0]) for way in mine[:3]), *_filter_events(known.get(host))]
        others = listed({end for way in mine for end in way.ends} - {host})
        yield at(rule, events, [host], {"others": others, "ports": ports, **_filter_fields(known.get(host), ports)})


def _gone(way: Way) -> bool:
    """Nothing at all answers there: that is another matter than a filter."""
    return not way.open and not (way.master and way.master.ok) and any(p.result in ("unreachable", "timeout") for p in way.data)


def unreachable(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """No way at all between hosts at the addresses that they would use: another subnet, a cut, a wrong address."""
    known = nodes(run)
    bad = {way.ends: way for way in ways(run) if not way.open and _gone(way) or any(p.result == "other-host" for p in way.data)}
    if not bad:
        return
    who = blamed(bad, [way.ends for way in ways(run)], known, hook=False)
    other = _other_network(run, {way.data[0].interface for way in bad.values() if way.data})
    events = [said(run, way.data[0]) for way in list(bad.values())[:4] if way.data]
    events += [known[host].says(f"interface {one.name}", f"{one.name} {', '.join(str(a.ip) for a in one.carries)}")
               for host in who[:2] if host in known for one in known[host].interfaces.values() if one.carries]  # fmt: skip
    pairs_said = listed(f"{start} → {end}" for start, end in bad)
    yield at(rule, events, who, {"pairs": pairs_said, "interface": other or "<an interface on which all hosts meet>"})


def _other_network(run: Run, used: set[str]) -> str:
    """An interface by whose addresses every pair that was tried did connect."""
    by: dict[str, dict[Ends, bool]] = {}
    for pair in pairs(run):
        if pair.interface not in used and pair.role == "data":
            ends = by.setdefault(pair.interface, {})
            ends[pair.start, pair.end] = ends.get((pair.start, pair.end), False) or pair.ok
    wanted = {way.ends for way in ways(run)}
    return next((name for name, ends in sorted(by.items()) if ends.keys() >= wanted and all(ends.values())), "")


# -- payload -------------------------------------------------------------------------------------------------------


def large_packets_vanish(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """Small packets pass, full ones do not, and nobody says so: set-up succeeds and the first all_reduce stands."""
    known = nodes(run)
    stalled = {way.ends: way.bulk for way in ways(run) if way.bulk and way.bulk.stalled}
    if not stalled:
        return
    who = blamed(stalled, [way.ends for way in ways(run) if way.bulk], known, hook=False)
    sizes = [pair.fits for pair in stalled.values() if pair.fits]
    size = str(min(sizes)) if sizes else "1280"
    for host in known if len(who) > 1 or not who else who:
        node = known.get(host)
        name = node.gloo.interface.name if node and node.gloo.interface else next(iter(stalled.values())).interface
        mine = [pair for ends, pair in stalled.items() if host in ends] or list(stalled.values())
        events = [said(run, pair) for pair in mine[:3]]
        if node and name in node.interfaces:
            events.append(node.says(f"interface {name}", f"{name} has MTU {node.interfaces[name].mtu}"))
        others = listed({end for pair in mine for end in (pair.start, pair.end)} - {host})
        yield at(rule, events, [host], {"others": others, "interface": name, "mtu": size})


def slow_path(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    """Far below what the other pairs reach; with two hosts, below the other direction."""
    known = nodes(run)
    rates = {way.ends: way.bulk.mbps for way in ways(run) if way.bulk and way.bulk.mbps is not None and not way.bulk.stalled}
    if len(rates) < 2:
        return
    bad = {ends: one for ends, one in rates.items() if one < _SLOW * _of_the_others(rates, ends) and one < _CERTAINLY_FAST_MBPS}
    if not bad:
        return
    shaped = [host for host in {end for ends in bad for end in ends} if _shaper(known.get(host))]
    covering = blamed(bad, rates, known, hook=False)
    who = [host for host in covering if host in shaped] or covering
    usual = median(rate for ends, rate in rates.items() if ends not in bad) if len(bad) < len(rates) else 0.0
    for host in who:
        mine = {ends: rate for ends, rate in bad.items() if host in ends} or bad
        (start, end), rate = min(mine.items(), key=lambda item: item[1])
        name, shaper = _shaper(known.get(host)) or ("", "")
        text = f"{start} → {end}: {rate:,.0f} Mbit/s; the others reach {usual:,.0f}"
        events = [Event("net check", 0, "network", text, host=start)]
        if shaper:
            events.append(known[host].says(f"interface {name}", f"{name} has the traffic shaper {shaper}"))
        interface = name or (known[host].gloo.interface.name if host in known and known[host].gloo.interface else "<interface>")  # type: ignore[union-attr]
        one = at(rule, events, [host], {"rate": f"{rate:,.0f}", "usual": f"{usual:,.0f}", "interface": interface, "others": listed({e for ends in mine for e in ends} - {host})})
        causes = {"network-interface-or-firewall-misconfiguration": 30.0} if shaper else {"network-interface-or-firewall-misconfiguration": 0.05}
        yield replace(one, weights=causes)


def _of_the_others(rates: Mapping[Ends, float], but: Ends) -> float:
    return median(rate for ends, rate in rates.items() if ends != but)


def _shaper(node: Node | None) -> tuple[str, str] | None:
    """(interface, queueing discipline) of one that slows down on purpose."""
    found = [one for one in (node.interfaces.values() if node else ()) if one.qdisc in ("tbf", "htb", "hfsc", "cbq", "netem", "police")]
    return (found[0].name, found[0].qdisc) if found else None


def packets_lost(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    known = nodes(run)
    slow = {ends for one in found if one.rule == "NET055" for ends in [tuple(one.hosts)]}
    rates = {way.ends: way.bulk for way in ways(run) if way.bulk and way.bulk.segments and not way.bulk.stalled}
    bad = {ends: pair for ends, pair in rates.items() if pair.retransmitted >= max(_LOST_AT_LEAST, _LOST * pair.segments)}
    bad = {ends: pair for ends, pair in bad.items() if not any(host in ends for hosts in slow for host in hosts)}
    if not bad:
        return
    for host in blamed(bad, rates, known):
        mine = [pair for ends, pair in bad.items() if host in ends]
        worst = max(mine, key=lambda pair: pair.retransmitted / pair.segments)
        share = f"{100 * worst.retransmitted / worst.segments:.1f} %"
        text = f"{worst.start} → {worst.end}: {worst.retransmitted} of {worst.segments} segments were sent again"
        chance = [one for one in drops(known.get(host)) if any(word in str(one.get("text")) for word in ("numgen", "statistic", "random", "limit"))]
        handle = _HANDLE.search(str(chance[0].get("text"))) if chance else None
        repair = f"nft delete rule {chance[0].get('table')} {chance[0].get('chain')} handle {handle.group(1)}" if handle else "ethtool -S <interface> | grep -iE 'err|drop|discard'"
        one = at(rule, [Event("net check", 0, "network", text, host=worst.start), *_filter_events(known.get(host))], [host],
                 {"share": share, "others": listed({e for p in mine for e in (p.start, p.end)} - {host}), "repair": repair})  # fmt: skip
        yield replace(one, weights={"network-interface-or-firewall-misconfiguration": 30.0 if handle else 0.1})

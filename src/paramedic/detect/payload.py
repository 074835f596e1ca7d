"""What full-sized packets meet on their way: paths where they vanish, crawl or get lost, judged over all pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from paramedic.detect.network import Found, at
from paramedic.detect.reach import Ends, blamed, drops, filter_events, said, ways
from paramedic.detect.topology import Node, listed, nodes, plain
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_SLOW = 0.25
_CERTAINLY_FAST_MBPS = 2_000.0
"""Above this no path is called slow: what differs there is the machines' load."""
_LOST = 0.02
_LOST_AT_LEAST = 20
_HANDLE = regex(r"# handle (\d{1,9})")


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
    rates = {
        way.ends: way.bulk.mbps for way in ways(run) if way.bulk and way.bulk.mbps is not None and not way.bulk.stalled
    }
    if len(rates) < 2:
        return
    bad = {
        ends: one
        for ends, one in rates.items()
        if one < _SLOW * _of_the_others(rates, ends) and one < _CERTAINLY_FAST_MBPS
    }
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
        interface = name or _of_job(known.get(host))
        one = at(
            rule,
            events,
            [host],
            {
                "rate": f"{rate:,.0f}",
                "usual": f"{usual:,.0f}",
                "interface": interface,
                "others": listed({e for ends in mine for e in ends} - {host}),
            },
        )
        causes = (
            {"network-interface-or-firewall-misconfiguration": 30.0}
            if shaper
            else {"network-interface-or-firewall-misconfiguration": 0.05}
        )
        yield replace(one, weights=causes)


def _of_job(node: Node | None) -> str:
    return node.gloo.interface.name if node and node.gloo.interface else "<interface>"


def _of_the_others(rates: Mapping[Ends, float], but: Ends) -> float:
    return median(rate for ends, rate in rates.items() if ends != but)


def _shaper(node: Node | None) -> tuple[str, str] | None:
    """(interface, queueing discipline) of one that slows down on purpose."""
    found = [
        one
        for one in (node.interfaces.values() if node else ())
        if one.qdisc in ("tbf", "htb", "hfsc", "cbq", "netem", "police")
    ]
    return (found[0].name, found[0].qdisc) if found else None


def packets_lost(run: Run, rule: Rule, found: Sequence[Finding]) -> Found:
    known = nodes(run)
    slow = {host for one in found if one.rule == "NET055" for host in one.hosts}
    rates = {way.ends: way.bulk for way in ways(run) if way.bulk and way.bulk.segments and not way.bulk.stalled}
    bad = {
        ends: pair for ends, pair in rates.items() if pair.retransmitted >= max(_LOST_AT_LEAST, _LOST * pair.segments)
    }
    bad = {ends: pair for ends, pair in bad.items() if not slow & set(ends)}
    if not bad:
        return
    for host in blamed(bad, rates, known):
        mine = [pair for ends, pair in bad.items() if host in ends]
        worst = max(mine, key=lambda pair: pair.retransmitted / pair.segments)
        share = f"{100 * worst.retransmitted / worst.segments:.1f} %"
        text = f"{worst.start} → {worst.end}: {worst.retransmitted} of {worst.segments} segments were sent again"
        chance = [
            one
            for one in drops(known.get(host))
            if any(word in str(one.get("text")) for word in ("numgen", "statistic", "random", "limit"))
        ]
        handle = _HANDLE.search(str(chance[0].get("text"))) if chance else None
        repair = (
            f"nft delete rule {plain(chance[0].get('table'))} {plain(chance[0].get('chain'))} handle {handle.group(1)}"
            if handle
            else "ethtool -S INTERFACE | grep -iE 'err|drop|discard'"
        )
        events = [Event("net check", 0, "network", text, host=worst.start), *filter_events(known.get(host))]
        others = listed({end for pair in mine for end in (pair.start, pair.end)} - {host})
        one = at(rule, events, [host], {"share": share, "others": others, "repair": repair})
        yield replace(one, weights={"network-interface-or-firewall-misconfiguration": 30.0 if handle else 0.1})

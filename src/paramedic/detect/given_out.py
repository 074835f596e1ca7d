"""Addresses that hosts gave out though nobody else can reach them there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace

from paramedic.detect.hostnames import short
from paramedic.detect.places import Places, at_ranks
from paramedic.model import Finding, Run

_INTERFACE, _GIVEN_OUT = "network-interface-or-firewall-misconfiguration", 60.0


def bridged(run: Run) -> Mapping[str, set[str]]:
    """Addresses that NCCL gave out though only their own host can reach them, and the hosts that did."""
    hosts: dict[str, set[str]] = defaultdict(set)
    for fact in run.facts:
        if fact.name == "bridge" and isinstance(fact.value, str) and len(words := fact.value.split(" ")) == 2:
            hosts[words[1]].add(short(words[0]))
    return hosts


def behind_a_bridge(one: Finding, bridges: Mapping[str, set[str]], known: Places, everybody: frozenset[int]) -> Finding:
    """Who could not connect to such an address is a victim; the fault is with those who gave it out."""
    hosts = bridges.get(one.fields.get("host", ""), ()) if one.symptom.startswith("rendezvous-setup") else ()
    ranks = frozenset(rank for host in hosts for rank in known.ranks_on.get(host, ()))
    if not ranks or ranks == everybody or one.severity != "error":
        return one
    accused = at_ranks(one, ranks)
    return replace(
        accused,
        hosts=tuple(sorted(hosts)),
        consequence="never",
        weights={**one.weights, _INTERFACE: _GIVEN_OUT},
        fields={**accused.fields, "who": f"The others, to whom {_few(hosts)} gave an address inside its own host,"},
    )


def by_loopback(run: Run, one: Finding, known: Places) -> Finding:
    """Of two hosts the one is refused at an address that every host has for itself: the other has given it out."""
    if not one.fields.get("remote", "").startswith("127.") or one.ranks:
        return one
    blocks = set(known.ranks_on.values())  # a host may have two names
    if len(blocks) != 2:
        return one
    source = one.evidence[0].event.source
    here = {e.rank for e in run.of_kind("exit") if e.source == source} - {None}
    others = [ranks for ranks in blocks if not ranks & here]
    if not here or len(others) != 1:
        return one
    hosts = [host for host, ranks in known.ranks_on.items() if ranks == others[0]]
    accused = at_ranks(one, others[0])
    who = f"Who was to connect to {_few(hosts[:1])}, which gave out its own loopback,"
    return replace(accused, hosts=tuple(hosts[:1]), fields={**accused.fields, "who": who})


def _few(hosts: Collection[str]) -> str:
    return ", ".join(sorted(hosts)[:4]) + (", …" if len(hosts) > 4 else "")

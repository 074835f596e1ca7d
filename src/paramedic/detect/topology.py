"""The nodes of a job as their facts describe them, and what gloo, NCCL and the store would choose on each.

Facts may be anybody's: what is not of the right type counts as not known.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from paramedic.detect.once import once
from paramedic.model import Event, Fact, Run
from paramedic.regex import regex

IP = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_VIRTUAL = (
    "docker",
    "virbr",
    "br-",
    "cni",
    "flannel",
    "podman",
    "lxc",
    "lxd",
    "cali",
    "veth",
    "vnet",
    "kube",
    "cilium",
)
_NOTHING: Mapping[str, Any] = {}
_PLAIN = regex(r"[\w.:/@=+,^%-][\w.:/@=+,^% -]{0,199}", re.A)
_INTERFACE = regex(r"[\w.@:-]{1,40}")


@dataclass(frozen=True, slots=True)
class Address:
    ip: IP
    prefix: int
    scope: str

    @property
    def network(self) -> Network:
        return ipaddress.ip_network(f"{self.ip}/{self.prefix}", strict=False)

    @property
    def usable(self) -> bool:
        """From another host, without naming an interface."""
        return self.scope in ("global", "site") and not self.ip.is_loopback and not self.ip.is_link_local


@dataclass(frozen=True, slots=True)
class Interface:
    name: str
    up: bool
    loopback: bool
    kind: str
    mtu: int
    speed: int | None
    qdisc: str
    addresses: tuple[Address, ...]

    @property
    def bridge(self) -> bool:
        """Made for containers and virtual machines of this host: nobody else is on it."""
        return self.name.startswith(_VIRTUAL)

    @property
    def carries(self) -> tuple[Address, ...]:
        return tuple(one for one in self.addresses if one.usable) if self.up and not self.loopback else ()


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a library would use on a node, and by which setting. `interface` is None for an address nobody has."""

    interface: Interface | None
    address: IP | None
    why: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Node:
    host: str
    facts: Mapping[str, Fact] = field(repr=False)

    def value(self, name: str) -> Any:
        return self.facts[name].value if name in self.facts else None

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self.value(name)
        return value if isinstance(value, Mapping) else _NOTHING

    def named(self, prefix: str) -> Iterator[tuple[str, Any]]:
        """`interface ` gives (eth0, …), (lo, …)."""
        for name, fact in self.facts.items():
            if name.startswith(prefix):
                yield name.removeprefix(prefix), fact.value

    def numbers(self, name: str) -> list[int]:
        value = self.value(name)
        return [one for one in value if type(one) is int] if isinstance(value, list) else []

    @cached_property
    def interfaces(self) -> dict[str, Interface]:
        said = [(name, value) for name, value in self.named("interface ") if isinstance(value, Mapping)]
        return {name: _interface(name, value) for name, value in said if _INTERFACE.fullmatch(name)}

    @cached_property
    def env(self) -> dict[str, str]:
        return {name: value for name, value in self.named("env ") if isinstance(value, str)}

    @cached_property
    def settings(self) -> dict[str, str]:
        """Environment over nccl.conf, as NCCL reads them."""
        conf = {
            name: str(value) for _, values in self.named("conf ") if isinstance(values, Mapping)
            for name, value in values.items()
        }  # fmt: skip
        return conf | self.env

    @cached_property
    def launch(self) -> dict[str, str]:
        return {name: value for name, value in self.mapping("launch").items() if isinstance(value, str)}

    @cached_property
    def own(self) -> dict[IP, Interface]:
        """All addresses of this node."""
        return {address.ip: one for one in self.interfaces.values() for address in one.addresses}

    def resolved(self, name: str) -> list[IP] | None:
        """None where it was not asked; empty where there is no answer."""
        if (literal := address_of(name)) is not None:
            return [literal]
        said = self.value(f"resolve {name}")
        if not isinstance(said, Mapping) or not isinstance(said.get("addresses"), list):
            return None
        return [one for text in said["addresses"] if (one := address_of(text)) is not None]

    @property
    def hostname(self) -> str:
        value = self.value("hostname")
        return value if isinstance(value, str) and _INTERFACE.fullmatch(value) else self.host

    @cached_property
    def gloo(self) -> Chosen:
        """GLOO_SOCKET_IFNAME names one interface exactly; without it the host's own name decides."""
        if name := self.env.get("GLOO_SOCKET_IFNAME", "").split(",")[0]:
            return self._of_interface(name, f"GLOO_SOCKET_IFNAME={self.env['GLOO_SOCKET_IFNAME']}")
        found = self.resolved(self.hostname)
        if found is None:
            return Chosen(None, None, "not known")
        own = next((ip for ip in found if ip in self.own or ip.is_loopback), None)
        why = f"GLOO_SOCKET_IFNAME is not set, and {self.hostname} is {own or 'no address of this host'}"
        if own is None:
            own = ipaddress.ip_address("127.0.0.1")
        return Chosen(self.own.get(own) or self._loopback(), own, why)

    @cached_property
    def nccl(self) -> Chosen:
        """NCCL's first interface. Names are prefixes, `=` makes them exact, `^` leaves out; docker and lo come last."""
        setting = self.settings.get("NCCL_SOCKET_IFNAME", "")
        chosen = self.nccl_all
        if setting and not chosen:
            return Chosen(None, None, f"NCCL_SOCKET_IFNAME={setting}", (setting,))
        why = f"NCCL_SOCKET_IFNAME={setting}" if setting else "NCCL_SOCKET_IFNAME is not set"
        first = chosen[0] if chosen else None
        return Chosen(first, first.carries[0].ip if first and first.carries else None, why)

    @cached_property
    def nccl_all(self) -> list[Interface]:
        setting = self.settings.get("NCCL_SOCKET_IFNAME", "")
        there = [one for one in self.interfaces.values() if one.up and one.addresses]
        if setting:
            return [one for one in there if named_by_nccl(one.name, setting)]
        carrying = [one for one in there if one.carries]
        for group in (
            [one for one in carrying if one.name.startswith("ib")],
            [one for one in carrying if not one.name.startswith(("docker", "lo"))],
            carrying,
        ):
            if group:
                return group
        return there

    def _of_interface(self, name: str, why: str) -> Chosen:
        one = self.interfaces.get(name)
        if one is None or not one.addresses or not one.up:
            return Chosen(one, None, why, (name,))
        first = one.carries[0].ip if one.carries else one.addresses[0].ip
        return Chosen(one, first, why)

    def _loopback(self) -> Interface | None:
        return next((one for one in self.interfaces.values() if one.loopback), None)

    def best(self, networks: Iterable[Network] = ()) -> Interface | None:
        """The fastest interface that leads to other hosts; where networks are given, on one of them."""
        wanted = list(networks)
        able = [
            one for one in self.interfaces.values()
            if one.carries and not one.bridge
            and (not wanted or any(address.network in wanted for address in one.carries))
        ]  # fmt: skip
        return max(able, key=lambda one: (one.speed or 0, one.mtu), default=None)

    def says(self, name: str, text: str) -> Event:
        """A fact, as evidence."""
        fact = self.facts.get(name)
        return Event(fact.source if fact else "net probe", 0, "network", f"{self.host}: {text}", host=self.host)


@dataclass(frozen=True, slots=True)
class Pair:
    """One host dialled another one. `role` is `master` or `data`: which port; `chosen`: where the job would dial.

    `stalled` says which way large packets did not arrive, `out` or `in`; `fits` is an MTU with which they would.
    """

    start: str
    end: str
    interface: str
    address: str
    port: int
    role: str
    chosen: bool
    result: str
    stalled: str
    fits: int
    mbps: float | None
    retransmitted: int
    segments: int
    fact: Fact = field(repr=False)

    @property
    def ok(self) -> bool:
        return self.result == "ok"


def address_of(text: Any) -> IP | None:
    try:
        return ipaddress.ip_address(text.split("%")[0]) if isinstance(text, str) else None
    except ValueError:
        return None


def named_by_nccl(name: str, setting: str) -> bool:
    exclude, exact = setting.startswith("^"), setting.lstrip("^").startswith("=")
    parts = [part for part in setting.lstrip("^").lstrip("=").split(",") if part]
    hit = any(name == part if exact else name.startswith(part) for part in parts)
    return hit != exclude


@once
def nodes(run: Run) -> dict[str, Node]:
    grouped: dict[str, dict[str, Fact]] = {}
    for fact in run.facts:
        if fact.host and fact.name != "pair":
            grouped.setdefault(fact.host, {})[fact.name] = fact
    probed = {host: facts for host, facts in grouped.items() if any(name.startswith("interface ") for name in facts)}
    return {host: Node(host, probed[host]) for host in sorted(probed)}


@once
def pairs(run: Run) -> list[Pair]:
    return [_pair(fact) for fact in run.facts if fact.name == "pair" and isinstance(fact.value, Mapping)]


def shared_networks(of: Mapping[str, Node]) -> list[Network]:
    """Networks that every node is on, those of containers left out; the fastest first."""
    found: dict[Network, dict[str, int]] = {}
    for node in of.values():
        for one in node.interfaces.values():
            for address in () if one.bridge else one.carries:
                found.setdefault(address.network, {})[node.host] = one.speed or 0
    common = [network for network, hosts in found.items() if len(hosts) == len(of)]
    return sorted(common, key=lambda network: (-min(found[network].values()), network.version))


def majority(values: Mapping[str, Any]) -> Any:
    """What most hosts have; None where no value has more than any other."""
    counts: dict[Any, int] = {}
    for value in values.values():
        counts[value] = counts.get(value, 0) + 1
    ranked = sorted(counts.values(), reverse=True)
    if len(ranked) > 1 and ranked[0] == ranked[1]:
        return None
    return max(counts, key=lambda value: counts[value], default=None)


def _interface(name: str, value: Mapping[str, Any]) -> Interface:
    said = value.get("addresses")
    addresses = [one for item in (said if isinstance(said, list) else ()) if (one := _address(item)) is not None]
    return Interface(
        name,
        value.get("up") is True,
        value.get("loopback") is True,
        str(value.get("kind") or ""),
        _int(value.get("mtu")) or 0,
        _int(value.get("speed")),
        str(value.get("qdisc") or ""),
        tuple(addresses),
    )


def _address(item: Any) -> Address | None:
    ip = address_of(item.get("address")) if isinstance(item, Mapping) else None
    if ip is None:
        return None
    prefix = _int(item.get("prefix"))
    return Address(ip, prefix if prefix is not None and 0 <= prefix <= ip.max_prefixlen else ip.max_prefixlen,
                   str(item.get("scope")))  # fmt: skip


def _pair(fact: Fact) -> Pair:
    said = fact.value
    mbps = said.get("mbps")
    return Pair(
        str(said.get("from")), str(said.get("to")), str(said.get("interface") or ""), str(said.get("address") or ""),
        _int(said.get("port")) or 0, str(said.get("role") or "data"), said.get("chosen") is not False,
        str(said.get("result") or ""), str(said.get("stalled") or ""), _int(said.get("fits")) or 0,
        float(mbps) if isinstance(mbps, int | float) else None,
        _int(said.get("retransmitted")) or 0, _int(said.get("segments")) or 0, fact,
    )  # fmt: skip


def _int(value: Any) -> int | None:
    return value if type(value) is int else None


def plain(text: Any) -> str:
    """For a command that is printed to be copied: facts may be a stranger's, and a shell would run what they hide."""
    return text if isinstance(text, str) and _PLAIN.fullmatch(text) else "SEE_THE_EVIDENCE"


def listed(names: Iterable[str], most: int = 6) -> str:
    """`a, b and 3 more`."""
    all_of: Sequence[str] = sorted(names)
    shown = ", ".join(all_of[:most])
    return f"{shown} and {len(all_of) - most} more" if len(all_of) > most else shown

"""What a plan may choose from, and what stands in its way: the nodes' facts as choices and named obstacles."""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from paramedic.detect.network import DEFAULT_PORT, first_node, master_of, owner_of, uses_nccl
from paramedic.detect.topology import Node, Pair, listed, nodes, pairs
from paramedic.errors import ParamedicError
from paramedic.model import Run

PLANES = ("gloo", "nccl")
VARIABLES = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}
_PORTS = range(DEFAULT_PORT, DEFAULT_PORT + 200)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An interface of a host with one of its addresses."""

    host: str
    interface: str
    address: str
    network: str
    speed: int = 0

    @property
    def family(self) -> int:
        return 6 if ":" in self.address else 4


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A fact that forbids something. `background` ones are beyond dispute and never shown as a conflict.

    kind      what it forbids
    unusable  endpoint `a`
    apart     networks `a` and `b` together
    cut       endpoints `a` and `b` together
    busy      port `port` with master `host`
    master    any other master than `host`
    port      any other port than `port`
    family    any other family than `port`
    keep      any other interface than `b` on `host` in plane `a`
    """

    kind: str
    text: str
    cure: str
    background: bool = False
    a: str = ""
    b: str = ""
    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class World:
    hosts: tuple[str, ...]
    endpoints: Mapping[str, tuple[Endpoint, ...]]
    obstacles: tuple[Obstacle, ...] = ()
    planes: tuple[str, ...] = ("gloo",)
    set_now: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(plane, host) → the interface that is set already and is kept where it can be."""
    master: str = ""
    port: int = DEFAULT_PORT
    ports: tuple[int, ...] = tuple(_PORTS)


def id_of(one: Endpoint) -> str:
    return f"{one.host} {one.interface} {one.address}"


def world(run: Run, pins: Sequence[str] = ()) -> World:
    among = nodes(run)
    if not among:
        raise ParamedicError("there are no nodes' facts to plan with")
    endpoints = {host: tuple(_endpoints(node)) for host, node in among.items()}
    pinned = [_pinned(pin, among) for pin in pins]
    said = [master for node in among.values() if (master := master_of(node))]
    owner = next(
        (o for node in among.values() if (m := master_of(node)) and (o := owner_of(node.resolved(m[0]) or (), among))),
        None,
    )
    first = first_node(among)
    port = next((port for _, port in said if 1023 < port < 1 << 16), DEFAULT_PORT)
    extra = {obstacle.port for group in pinned for obstacle in group if obstacle.kind == "port"}
    obstacles = [
        *_unusable(among, endpoints), *_apart(among, endpoints), *_cuts(pairs(run), endpoints, among),
        *_busy(among, {port, *_PORTS, *extra}), *_blocked(pairs(run)), *(one for group in pinned for one in group),
    ]  # fmt: skip
    return World(
        hosts=tuple(sorted(among)),
        endpoints=endpoints,
        obstacles=tuple(obstacles),
        planes=PLANES if any(map(uses_nccl, among.values())) else ("gloo",),
        set_now=dict(_set_now(among)),
        master=owner.host if owner else first.host if first else min(among),
        port=port,
        ports=tuple(dict.fromkeys([port, *_PORTS, *sorted(extra)])),
    )


def _endpoints(node: Node) -> Iterator[Endpoint]:
    for one in node.interfaces.values():
        for address in one.carries:
            yield Endpoint(node.host, one.name, str(address.ip), str(address.network), one.speed or 0)


def _set_now(among: Mapping[str, Node]) -> Iterator[tuple[tuple[str, str], str]]:
    for host, node in among.items():
        for plane, variable in VARIABLES.items():
            if name := node.settings.get(variable, "").lstrip("=").split(",")[0]:
                yield (plane, host), name


# -- obstacles -----------------------------------------------------------------------------------------------------


def _unusable(among: Mapping[str, Node], endpoints: Mapping[str, Iterable[Endpoint]]) -> Iterator[Obstacle]:
    owners = Counter(one.address for group in endpoints.values() for one in group)
    for host, group in endpoints.items():
        for one in group:
            if among[host].interfaces[one.interface].bridge:
                yield Obstacle(
                    "unusable", f"{one.interface} on {host} is a bridge for containers", "", True, id_of(one)
                )
            elif owners[one.address] > 1:
                text = f"{one.address} ({one.interface} on {host}) is another host's address, too"
                yield Obstacle(
                    "unusable", text, f"give {host} an address of its own on {one.interface}", False, id_of(one)
                )


def _apart(among: Mapping[str, Node], endpoints: Mapping[str, Iterable[Endpoint]]) -> Iterator[Obstacle]:
    """Networks of one family between which nobody routes."""
    on: dict[str, set[str]] = defaultdict(set)
    for group in endpoints.values():
        for one in group:
            if not among[one.host].interfaces[one.interface].bridge:
                on[one.network].add(one.host)
    names = sorted(on)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            if (":" in a) == (":" in b) and not _routes_between(among, on, a, b):
                yield Obstacle("apart", f"{a} and {b} are not routed to each other", "", True, a, b)


def _routes_between(among: Mapping[str, Node], on: Mapping[str, set[str]], a: str, b: str) -> bool:
    return all(_has_route(among[host], other) for here, other in ((a, b), (b, a)) for host in on[here])


def _has_route(node: Node, network: str) -> bool:
    wanted = ipaddress.ip_network(network)
    value = node.value("routes")
    for route in value if isinstance(value, list) else ():
        to = str(route.get("to") or "") if isinstance(route, dict) and route.get("gateway") else ""
        try:
            there = ipaddress.ip_network(to)
        except ValueError:
            continue
        if there.prefixlen and there.version == wanted.version and there.supernet_of(wanted):  # type: ignore[arg-type]
            return True
    return False


def _cuts(
    tried: Iterable[Pair], endpoints: Mapping[str, Sequence[Endpoint]], among: Mapping[str, Node]
) -> Iterator[Obstacle]:
    """What the tests showed: a pair that does not connect, or loses large packets, at this address."""
    by_address = {(one.host, one.address): one for group in endpoints.values() for one in group}
    bad: dict[tuple[str, str], tuple[Endpoint, Endpoint, str]] = {}
    dialled: dict[str, set[str]] = defaultdict(set)
    failed: dict[str, set[str]] = defaultdict(set)
    for pair in tried:
        end = by_address.get((pair.end, pair.address))
        start = next((one for one in endpoints.get(pair.start, ()) if end and one.network == end.network), None)
        if pair.role != "data" or end is None or start is None:
            continue
        for one, other in ((start, end), (end, start)):
            dialled[id_of(one)].add(other.host)
            if not pair.ok or pair.stalled:
                failed[id_of(one)].add(other.host)
        if not pair.ok or pair.stalled:
            why = (
                "large packets vanish"
                if pair.stalled
                else {"filtered": "is filtered", "refused": "is refused"}.get(pair.result, "gets no answer")
            )
            first, second = sorted((start, end), key=id_of)
            bad.setdefault((id_of(first), id_of(second)), (first, second, why))
    alone = {name for name in failed if failed[name] == dialled[name] and len(dialled[name]) > 1}
    ends = {id_of(one): one for group in endpoints.values() for one in group}
    for name in sorted(alone):
        one = ends[name]
        yield Obstacle(
            "unusable",
            f"{one.interface} on {one.host} ({one.address}) has no working way to any host",
            f"repair or open {one.interface} on {one.host}",
            False,
            name,
        )
    for (a, b), (first, second, why) in sorted(bad.items()):
        if a not in alone and b not in alone:
            text = f"{first.host} – {second.host} on {first.interface} {why}"
            yield Obstacle(
                "cut",
                text,
                f"open or repair the way between {first.host} and {second.host} on {first.interface}",
                False,
                a,
                b,
            )


def _busy(among: Mapping[str, Node], of_interest: set[int]) -> Iterator[Obstacle]:
    for host, node in among.items():
        for port in sorted(of_interest & set(node.numbers("listening"))):
            yield Obstacle(
                "busy", f"port {port} is taken on {host}", f"free port {port} on {host}", False, host=host, port=port
            )


def _blocked(tried: Iterable[Pair]) -> Iterator[Obstacle]:
    seen = {
        (pair.end, pair.port)
        for pair in tried
        if pair.role == "master" and pair.result in ("filtered", "refused", "timeout")
    }
    for host, port in sorted(seen):
        yield Obstacle(
            "busy", f"port {port} is filtered on {host}", f"open port {port} on {host}", False, host=host, port=port
        )


# -- what the user wants kept --------------------------------------------------------------------------------------


def _pinned(pin: str, among: Mapping[str, Node]) -> list[Obstacle]:
    name, equals, value = pin.partition("=")
    value, _, host = value.partition("@")
    name = name.strip()
    if not equals or not value or (host and host not in among):
        raise ParamedicError(f"--pin {pin}: is NAME=VALUE or NAME=VALUE@HOST, with one of the hosts {listed(among)}")
    text, cure = f"you pinned {pin}", f"drop --pin {pin}"
    if name.lower() in ("master", "master_addr"):
        owner = among.get(value) or next((node for node in among.values() if value in map(str, node.own)), None)
        if owner is None:
            raise ParamedicError(f"--pin {pin}: {value} is none of the hosts {listed(among)}, nor an address of one")
        return [Obstacle("master", text, cure, host=owner.host)]
    if name.lower() in ("port", "master_port"):
        if not (value.isascii() and value.isdigit() and 0 < int(value) < 1 << 16):
            raise ParamedicError(f"--pin {pin}: {value} is no port")
        return [Obstacle("port", text, cure, port=int(value))]
    if name.lower() == "family":
        if value.lower().removeprefix("ipv") not in ("4", "6"):
            raise ParamedicError(f"--pin {pin}: family is 4 or 6")
        return [Obstacle("family", text, cure, port=int(value[-1]))]
    plane = next((plane for plane, variable in VARIABLES.items() if variable == name), None)
    if plane is None:
        raise ParamedicError(f"--pin {pin}: {name} is not one of master, port, family, {', '.join(VARIABLES.values())}")
    hosts = [host] if host else sorted(among)
    return [Obstacle("keep", text if host else f"{text} (on {one})", cure, a=plane, b=value, host=one) for one in hosts]

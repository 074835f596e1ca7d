"""The one who checks: takes in the nodes' facts, tells them whom to dial, and makes one Run of all that came back."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from paramedic.collect.gather import Refused
from paramedic.collect.netfile import checked
from paramedic.detect.network import master_of, owner_of
from paramedic.detect.topology import Address, Interface, Node, nodes, shared_networks
from paramedic.model import Fact, Run, Skipped, Source

MANY = 16
"""Up to so many hosts every one dials every other one; beyond, those 1, 2, 4, 8 … places further and back."""
TEST_SECONDS = 20.0
_DATA_PORTS = 2
Told = Callable[[Run], None]


class Hall(Protocol):
    """The checker's side of a board."""

    def put(self, name: str, value: Any) -> None: ...
    def wait(self, name: str, seconds: float) -> Any: ...
    def hosts(self) -> list[str]: ...
    def left(self) -> set[str]: ...


@dataclass
class Session:
    hall: Hall
    expected: int
    facts: list[Fact] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    named: list[str] = field(default_factory=list)

    def gather(self, seconds: float) -> None:
        """Facts of all who come in time. A node that dies, or writes nonsense, is named and left out."""
        end = time.monotonic() + seconds
        done: set[str] = set()
        while len(done) < self.expected:
            over = time.monotonic() >= end
            for host in [host for host in self.hall.hosts() if host not in done]:
                try:
                    said = self.hall.wait(f"facts/{host}", 0.0)
                except Refused as error:
                    done.add(host)
                    self.skipped.append(Skipped(f"node {host}", f"refused: {error}"))
                    continue
                if said is not None or over or host in self.hall.left():
                    done.add(host)
                    self._take(host, said)
            if over:
                break
            time.sleep(0.01)
        if len(done) < self.expected:
            why = f"{self.expected - len(done)} of {self.expected} did not come in {seconds:.0f} s"
            self.skipped.append(Skipped("nodes", why))

    def _heard(self, name: str, seconds: float) -> Any:
        try:
            return self.hall.wait(name, seconds)
        except Refused as error:
            self.skipped.append(Skipped(name, f"refused: {error}"))
            return None

    def _take(self, host: str, said: Any) -> None:
        if said is None:
            self.skipped.append(Skipped(f"node {host}", "came, but sent no facts in time; did it die?"))
            return
        found, why = checked(said, f"{host}.net.json")
        mine = [fact for fact in found if fact.host == host and fact.name != "pair"]
        if len(mine) < len(found):
            self.skipped.append(Skipped(f"node {host}", "facts about other nodes than itself were refused"))
        self.skipped += [Skipped(f"node {host}", reason) for reason in why]
        self.facts += mine
        if mine:
            self.named.append(host)

    def test(self) -> None:
        """The active tests: listen, then dial, each step with its own limit."""
        among = nodes(self.run())
        master = _master(among)
        ports = {
            host: {"data": _sampled(node), "master": master[1] if master and master[0] is node else None}
            for host, node in among.items()
        }
        self.hall.put("plan", {"session": secrets.token_hex(32), "ports": ports})
        listening = {
            host: said for host in among if isinstance(said := self._heard(f"listening/{host}", TEST_SECONDS), dict)
        }
        lost = sorted(set(among) - set(listening))
        self.skipped += [Skipped(f"node {host}", "did not come back to be tested; did it die?") for host in lost]
        self.hall.put("go", {"dial": {host: list(_targets(host, among, listening, master)) for host in listening}})
        for host in listening:
            said = self._heard(f"result/{host}", TEST_SECONDS)
            if not isinstance(said, dict):
                self.skipped.append(Skipped(f"node {host}", "sent no results in time"))
                continue
            self._take_pairs(host, said.get("pairs"))
            if said.get("strangers"):
                self.skipped.append(
                    Skipped(f"node {host}", f"{said['strangers']!r:.9} connections of strangers were refused")
                )
        self.end()

    def _take_pairs(self, host: str, pairs: Any) -> None:
        found, why = checked({"paramedic_net": 1, "nodes": {}, "pairs": pairs}, "net check")
        self.facts += [fact for fact in found if fact.value.get("from") == host]
        self.skipped += [Skipped(f"node {host}", reason) for reason in why]

    def verify(self, plan: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Every node starts its rank with the plan's settings; what each said, or nothing."""
        size = str(len(plan["order"]))
        orders = {}
        for rank, host in enumerate(plan["order"]):
            numbers = {"RANK": str(rank), "WORLD_SIZE": size, "LOCAL_RANK": "0"}
            orders[host] = {"seconds": seconds, "env": plan["hosts"][host]["env"] | numbers}
        self.hall.put("plan", {"verify": orders})
        end = time.monotonic() + seconds + TEST_SECONDS
        said = {host: self._heard(f"verify/{host}", max(end - time.monotonic(), 0.1)) for host in orders}
        return {host: one if isinstance(one, dict) else {"ok": False} for host, one in said.items()}

    def end(self) -> None:
        self.hall.put("end", True)

    def run(self) -> Run:
        hosts = sorted({fact.host for fact in self.facts if fact.host})
        sources = [Source(f"{host}.net.json", "network", host=host, lines=1) for host in hosts]
        return Run("net", tuple(sources), (), tuple(self.facts), tuple(self.skipped))


# -- whom to dial --------------------------------------------------------------------------------------------------


def _master(among: Mapping[str, Node]) -> tuple[Node, int] | None:
    for node in among.values():
        if (said := master_of(node)) and (owner := owner_of(node.resolved(said[0]) or (), among)) and said[1]:
            return owner, said[1]
    return None


def _sampled(node: Node) -> list[int]:
    """Free ports at both ends of the range that ranks would get theirs from; the kernel adds one of its own choice."""
    span = node.numbers("ephemeral")
    low, high = (span[0], span[1]) if len(span) == 2 and 1024 <= span[0] < span[1] < 1 << 16 else (32_768, 60_999)
    taken = set(node.numbers("listening"))
    at_low = next(port for port in range(low + 101, high) if port not in taken)
    at_high = next(port for port in range(high - 101, low, -1) if port not in taken)
    return [at_low, at_high][:_DATA_PORTS]


def partners(hosts: list[str], many: int = MANY) -> Iterator[tuple[str, str]]:
    """All ordered pairs, round by round so that nobody is dialled by all at once; of many hosts n log n of them."""
    n = len(hosts)
    steps = range(1, n)
    if n > many:
        steps = sorted(
            {step % n for power in range(n.bit_length()) for step in (1 << power, n - (1 << power)) if step % n}
        )  # type: ignore[assignment]
    for step in steps:
        for index in range(n):
            yield hosts[index], hosts[(index + step) % n]


def job_address(node: Node, among: Mapping[str, Node]) -> tuple[Interface, Address] | None:
    """Where the job's ranks on this node would listen; where that is nowhere, where they should."""
    chosen = node.gloo
    one = chosen.interface if not chosen.missing else None
    if one and not one.bridge:
        for address in one.carries:
            if address.ip == chosen.address:
                return one, address
    for network in shared_networks(among):
        if best := node.best([network]):
            return best, next(address for address in best.carries if address.network == network)
    best = node.best()
    return (best, best.carries[0]) if best else None


def _targets(
    host: str, among: Mapping[str, Node], listening: Mapping[str, Any], master: tuple[Node, int] | None
) -> Iterator[dict[str, Any]]:
    own = among[host]
    for start, end in partners(sorted(listening)):
        if start == host:
            yield from _of_pair(own, among[end], among, listening[end], len(listening) <= MANY)
    if master and master[0].host != host and listening.get(master[0].host, {}).get("master"):
        said = master_of(own)
        ips = [ip for ip in own.resolved(said[0]) or () if ip in master[0].own and not ip.is_loopback] if said else []
        if ips:
            yield _target((master[0], master[0].own[ips[0]].name, str(ips[0])), master[1], "master")


def _of_pair(own: Node, to: Node, among: Mapping[str, Node], listening: Any, every: bool) -> Iterator[dict[str, Any]]:
    job = job_address(to, among)
    ports = [port for port in listening.get("data", ()) if type(port) is int]
    for one, address in _addresses(own, to, job, every):
        chosen = job is not None and address == job[1]
        for number, port in enumerate(ports if chosen else ports[-1:]):
            bulk = number == len(ports) - 1 if chosen else False
            yield _target((to, one.name, str(address.ip)), port, "data", chosen, bulk)


def _addresses(
    own: Node, to: Node, job: tuple[Interface, Address] | None, every: bool
) -> Iterator[tuple[Interface, Address]]:
    """The job's own; where there is time for it, the others on networks that both have, too."""
    if job:
        yield job
    mine = {address.network for one in own.interfaces.values() for address in one.carries}
    others: Iterable[Interface] = to.interfaces.values() if every else ()
    for one in others:
        for address in one.carries if not one.bridge else ():
            if address.network in mine and (job is None or address != job[1]):
                yield one, address


def _target(at: tuple[Node, str, str], port: int, role: str, chosen: bool = True, bulk: bool = False) -> dict[str, Any]:
    to, interface, address = at
    where = {"to": to.host, "interface": interface, "address": address, "port": port}
    return where | {"role": role, "chosen": chosen, "bulk": bulk}

"""What nvidia-smi showed beside the job: GPUs slowed down or broken, and processes on GPUs that are not theirs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from statistics import median
from typing import Any

from paramedic.detect.hostnames import in_order, parts_of_name, short
from paramedic.detect.match import on_events
from paramedic.detect.memory import of_another
from paramedic.detect.once import once
from paramedic.detect.places import Places
from paramedic.detect.ranks import listed
from paramedic.detect.where import places, whole_blocks
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_OFTEN, _LOOKS = 0.5, 3
"""Of all looks at a GPU at work so many show it slowed down, and as many looks are needed where nothing else tells."""
_LOWER, _FAR_LOWER = 0.9, 0.75
"""Of the other GPUs' clock: where the driver says why, and where only the clock tells."""
_HOTTER = 8
_WORKS, _AS_MUCH = 50, 0.8
_LESS_POWER = 0.9
_PEERS = 3
_MATTERS = 0.05
"""Of a GPU's memory: less in strangers' hands costs nobody anything."""
_MOST_OF_IT = 0.2
_MOST_NAMED = 4
_EMPTY, _EMPTY_MIB = 0.02, 600
_COMPUTES = ("C", "C+G")
_SERVES = ("mps-server", "Xorg", "Xwayland", "gnome-shell", "dcgm", "nv-hostengine")
_OOM = "device-out-of-memory"
_STRAGGLER = "straggler-or-imbalance"
_SLOW_TOO = (_STRAGGLER, "low-throughput")
_GPU = regex(r"\bGPU (\d{1,3})(?:;| has a total)")
_OTHER = regex(r"\bProcess (\d{1,10}) has ")


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU over all looks at it. A recording is a stranger's file: what is no number is None."""

    event: Event
    index: int

    def number(self, name: str) -> float | None:
        value = self.event.fields.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def bus(self) -> str:
        return str(self.event.fields.get("bus", ""))

    @property
    def kind(self) -> tuple[float | None, float | None]:
        """Cards of one kind can be compared: by their memory and their highest clock, where these were shown."""
        return self.number("total"), self.number("most")

    @property
    def slowed(self) -> list[str]:
        """Why, if it was slowed down most of the time."""
        counted = (line.partition(" ") for line in str(self.event.fields.get("slowed", "")).split("\n"))
        looks = self.number("at_work") or 0
        return sorted(why for times, _, why in counted if times.isdecimal() and int(times[:9]) > _OFTEN * looks)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process, the GPUs whose memory it holds, and how many MiB of each, where that was shown."""

    pid: int
    kind: str
    name: str
    held: Mapping[int, float | None]
    events: Mapping[int, Event]


@dataclass(slots=True)
class Node:
    host: str
    file: str = ""
    cards: dict[int, Card] = field(default_factory=dict)
    holders: list[Holder] = field(default_factory=list)
    unnumbered: dict[str, int] = field(default_factory=dict)
    """GPUs of which only the bus or the identity is known, under numbers below nought."""

    def named(self, index: int) -> str:
        shown = next((name for name, number in self.unnumbered.items() if number == index), str(index))
        return f"{shown} of {self.host}" if self.host else shown

    def number_of(self, name: str) -> int:
        return self.unnumbered.setdefault(name, -1 - len(self.unnumbered))

    def see(self, card: Card) -> None:
        """Of one GPU the card is kept that tells more."""
        old = self.cards.get(card.index)
        self.cards[card.index] = card if old is None or _tells_more(card, old) else old

    _on: dict[int, list[Holder]] | None = None

    def on(self, index: int) -> list[Holder]:
        """Asked once all holders are known."""
        if self._on is None:
            self._on = defaultdict(list)
            for one in self.holders:
                for held in one.held:
                    self._on[held].append(one)
        return self._on.get(index, [])


@once
def nodes(run: Run) -> list[Node]:
    """By the host that is told; what tells of none is one for each file."""
    known = places(run)
    found: dict[str, Node] = {}
    index_of: dict[tuple[str, str], int] = {}
    for event in run.of_kind("smi gpu"):
        key, host = _where(event, known)
        index = event.fields.get("index")
        if isinstance(index, int) and 0 <= index < 1024:
            node = found.setdefault(key, Node(host, PurePosixPath(event.source).stem))
            node.see(Card(event, index))
            index_of.update({(key, str(event.fields.get(name))): index for name in ("bus", "uuid")})
    held: dict[tuple[str, int], list[tuple[int, Event]]] = defaultdict(list)
    for event in run.of_kind("smi process"):
        key, host = _where(event, known)
        index, pid = event.fields.get("index"), event.fields.get("pid")
        name = str(event.fields.get("bus") or event.fields.get("uuid") or "")
        if isinstance(pid, int) and (isinstance(index, int) or name):
            node = found.setdefault(key, Node(host, PurePosixPath(event.source).stem))
            known_as = index_of.get((key, name)) if name else None
            index = index if isinstance(index, int) else node.number_of(name) if known_as is None else known_as
            held[key, pid].append((index, event))
    for (key, pid), told in held.items():
        found[key].holders.append(_holder(pid, told))
    return _of_one_host(list(found.values()), run)


def _tells_more(card: Card, other: Card) -> bool:
    """More looks; of as many, the one with a clock."""
    return [card.number("at_work") or 0, card.number("clock") or 0] > [
        other.number("at_work") or 0,
        other.number("clock") or 0,
    ]


def _of_one_host(found: list[Node], run: Run) -> list[Node]:
    """Several files that name no host, one with processes and others without: looks at one node in two ways."""
    nameless = [node for node in found if not node.host]
    listing = [node for node in nameless if node.holders]
    others = [node for node in nameless if not node.holders]
    if len(found) != len(nameless) or len(listing) != 1 or _size(run) > max(len(node.cards) for node in found):
        return found
    same = [node for node in others if not listing[0].cards or node.cards.keys() == listing[0].cards.keys()]
    for node in same if len(same) == len(others) else ():
        for card in node.cards.values():
            listing[0].see(card)
    return listing if len(same) == len(others) else found


def _where(event: Event, known: Places) -> tuple[str, str]:
    """(key, host) of the node that was looked at."""
    host = str(event.fields.get("node") or event.host or "")
    if not host:
        of_file = {short(part) for part in parts_of_name(event.source)} & known.ranks_on.keys()
        host = next(iter(of_file)) if len(of_file) == 1 else ""
    return (short(host), short(host)) if host else (f"\0{event.source}", "")


def _holder(pid: int, told: Sequence[tuple[int, Event]]) -> Holder:
    fields: Mapping[str, Any] = told[0][1].fields
    memory = {
        index: float(size) if isinstance(size := event.fields.get("memory"), int) else None for index, event in told
    }
    return Holder(pid, str(fields.get("type")), str(fields.get("name")), memory, dict(told))


# -- whose ---------------------------------------------------------------------------------------------------------


def _of_job(run: Run, node: Node) -> list[Holder]:
    """The job's processes, by what its log says of all of them; else those of one name, of which there are the most.
    None where GPUs are shared by a server or divided: then several on one are meant."""
    shared = any(one.kind.startswith("M") or "mps-server" in one.name for one in node.holders)
    divided = any(card.event.fields.get("divided") is True for card in node.cards.values())
    if shared or divided:
        return []
    known = places(run)
    told = [one for one in node.holders if known.rank_of(one.pid, node.host or None) is not None]
    if len(told) > 1 and len(told) >= min(_size(run), len(node.cards)):
        return told
    by_name: dict[str, list[Holder]] = defaultdict(list)
    for one in node.holders:
        if one.kind in _COMPUTES and not any(word in one.name for word in _SERVES):
            by_name[one.name].append(one)
    return max(by_name.values(), key=len, default=[])


def _size(run: Run) -> int:
    """How many ranks the job has; nought where nobody says so, and only the first is heard."""
    return run.world_size or (len(run.expected_ranks) if max(run.ranks_seen, default=0) else 0)


def _rank_of(run: Run, node: Node, card: Card) -> int | None:
    """By NCCL's number of the GPU, by the process on it, by what each rank says it uses; else ranks take the GPUs of a
    node in their order."""
    known = places(run)
    by_bus = {rank for (host, bus), rank in known.rank_of_gpu.items() if bus == card.bus and node.host in ("", host)}
    if len(by_bus) == 1:
        return by_bus.pop()
    alone = [one.pid for one in node.on(card.index) if len(one.held) == 1]
    by_pid = {known.rank_of(pid, node.host or None) for pid in alone} - {None}
    if len(by_pid) == 1:
        return by_pid.pop()
    ranks = sorted((whole_blocks(run).get(node.host) if node.host else ()) or _block(run, node))
    if not ranks and _one_node(run):
        said = {fact.rank for fact in run.facts if fact.name == "cuda" and fact.value == card.index}
        if len(said) == 1:
            return next(iter(said))
        ranks = list(range(_size(run) or len(node.cards)))
    used = (
        sorted(node.cards) if len(node.cards) == len(ranks) else sorted({min(one.held) for one in _of_job(run, node)})
    )
    return ranks[used.index(card.index)] if len(used) == len(ranks) and card.index in used else None


def _one_node(run: Run) -> bool:
    """All that was looked at is one node, with all ranks of the job: also where several files show it."""
    found = nodes(run)
    whole = all(not node.host and len(node.cards) == _size(run) for node in found)
    return (len(found) == 1 or whole) and len(places(run).ranks_on) <= 1


def _block(run: Run, node: Node) -> Sequence[int]:
    """Where all nodes of the job were looked at, and nobody tells which ranks were where: in the order of their names,
    or of their files', as launchers number them."""
    found, each = nodes(run), len(node.cards)
    names = {one.host or one.file for one in found}
    alike = all(len(one.cards) == each and bool(one.host) == bool(node.host) for one in found)
    if (
        places(run).ranks_on
        or not alike
        or len(found) < 2
        or len(names) * each != _size(run)
        or len(names) < len(found)
    ):
        return ()
    at = sorted(names, key=in_order).index(node.host or node.file)
    return range(at * each, (at + 1) * each)


# -- slowed down ---------------------------------------------------------------------------------------------------


def slowed(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A few GPUs run slower than they could while others of their kind do not: all wait for theirs."""
    told = [(node, card) for node in nodes(run) for card in node.cards.values() if card.number("at_work")]
    alike: dict[tuple[float | None, float | None], list[Card]] = defaultdict(list)
    for _, card in told:
        if not card.slowed:
            alike[card.kind].append(card)
    many = {kind: Peers(cards) for kind, cards in alike.items() if len(cards) > _MANY}

    def peers(card: Card) -> Peers:
        """The others of its kind that are not slowed; of many it does not matter whether it is one of them."""
        return many.get(card.kind) or Peers([other for other in alike.get(card.kind, ()) if other is not card])

    slow = [(node, card) for node, card in told if _is_slow(card, peers(card))]
    if not slow or 2 * len(slow) > len(told):
        return
    mine = [(node, card) for node, card in slow if not _anothers(run, node, card)]
    ranks = [rank for node, card in mine if (rank := _rank_of(run, node, card)) is not None]
    ranks = sorted(ranks) if len(ranks) == len(mine) else []
    if not mine:
        return
    slowest = {id(card) for _, card in slow}
    usual = _usual("clock", [card for _, card in told if id(card) not in slowest])
    _, card = mine[0]
    fields = {
        "cards": ", ".join(f"GPU {node.named(card.index)}" for node, card in mine[:4]),
        "why": _why(card, usual),
        **({"accused": listed(ranks)} if ranks else {}),
    }
    one = on_events(rule, [card.event for _, card in mine[:3]], ranks, fields)
    yield one if _tells_who(run, one, mine, found) else replace(one, severity="warning")


def _tells_who(run: Run, one: Finding, slow: Sequence[tuple[Node, Card]], found: Sequence[Finding]) -> bool:
    """Not beside failures of another kind, nor where the log knows of another slow rank, nor where the GPU may not be
    one of the job's."""
    errors = [other for other in found if other.severity == "error"]
    if any(other.symptom not in _SLOW_TOO for other in errors):
        return False
    late = {rank for other in errors if other.symptom == _STRAGGLER for rank in other.ranks}
    if late and late.isdisjoint(one.ranks):
        return False
    size = _size(run)
    return bool(one.ranks) or not size or all(len(node.cards) <= size for node, _ in slow)


def _anothers(run: Run, node: Node, card: Card) -> bool:
    """The processes were listed, and none of the job's is on it."""
    return bool(node.holders) and all(card.index not in one.held for one in _of_job(run, node))


_MANY = 64


@dataclass(slots=True)
class Peers:
    cards: Sequence[Card]
    _known: dict[str, float | None] = field(default_factory=dict)

    def usual(self, name: str) -> float | None:
        if name not in self._known:
            self._known[name] = _usual(name, self.cards)
        return self._known[name]


def _is_slow(card: Card, peers: Peers) -> bool:
    if not peers.cards:
        return False
    clock, usual = card.number("clock"), peers.usual("clock")
    share = clock / usual if clock is not None and usual else None
    if card.slowed:
        if share is not None:
            return share <= _LOWER
        heat, warm = card.number("temperature"), peers.usual("temperature")
        hotter = heat is not None and warm is not None and heat >= warm + _HOTTER
        return hotter or ((card.number("at_work") or 0) >= _LOOKS and any("hardware" in why for why in card.slowed))
    if card.event.fields.get("reasons") is True or share is None or len(peers.cards) < _PEERS:
        return False  # the driver says that nothing holds it back: somebody has set its clock, or it idles
    return share <= _FAR_LOWER and (card.number("at_work") or 0) >= _LOOKS and _as_busy(card, peers)


def _as_busy(card: Card, peers: Peers) -> bool:
    """As much at work as its peers, and it does not draw their power."""
    busy, others = card.number("busy"), peers.usual("busy")
    power, theirs = card.number("power"), peers.usual("power")
    if busy is None or others is None or busy < max(_WORKS, _AS_MUCH * others):
        return False
    return power is None or theirs is None or power <= _LESS_POWER * theirs


def _usual(name: str, cards: Sequence[Card]) -> float | None:
    values = [value for card in cards if (value := card.number(name)) is not None]
    return median(values) if values else None


def _why(card: Card, usual: float | None) -> str:
    clock, heat = card.number("clock"), card.number("temperature")
    said = list(card.slowed)
    said += [f"{heat:.0f} °C"] if heat is not None else []
    said += [f"{clock:.0f} MHz where the others have {usual:.0f}"] if clock is not None and usual else []
    return ", ".join(said)


# -- broken --------------------------------------------------------------------------------------------------------


def uncorrected(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Errors in a GPU's memory that nobody could correct, since the driver was loaded."""
    bad = [(node, card) for node in nodes(run) for card in node.cards.values() if (card.number("uncorrected") or 0) > 0]
    if bad:
        said = [f"{card.number('uncorrected'):.0f} on GPU {node.named(card.index)}" for node, card in bad]
        yield _broken(run, rule, found, bad, {"counts": ", ".join(said[:_MOST_NAMED])})


def unreadable(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """GPUs of which the driver cannot read what it reads of every GPU that works."""
    told = [(node, card) for node in nodes(run) for card in node.cards.values()]
    bad = [(node, card) for node, card in told if card.event.fields.get("unread") is True]
    if bad:
        yield _broken(run, rule, found, bad, {})


def _broken(
    run: Run, rule: Rule, found: Sequence[Finding], bad: Sequence[tuple[Node, Card]], fields: Mapping[str, str]
) -> Finding:
    """A remark: nobody knows when that was, nor whether the job uses these GPUs. It bears out a failure of their ranks,
    and explains none of others'."""
    told = [_rank_of(run, node, card) for node, card in bad if _size(run) and not _anothers(run, node, card)]
    ranks = sorted({rank for rank in told if rank is not None})
    cards = ", ".join(f"GPU {node.named(card.index)}" for node, card in bad[:_MOST_NAMED])
    one = on_events(rule, [_where_bad(card) for _, card in bad[:3]], ranks, {"cards": cards, **fields})
    errors = [other for other in found if other.severity == "error"]
    elsewhere = errors and all(set(ranks).isdisjoint(other.ranks) for other in errors)
    return replace(one, severity="info") if elsewhere else one


def _where_bad(card: Card) -> Event:
    """Its event at the line that shows it."""
    line, text = card.number("bad_line"), card.event.fields.get("bad_text")
    return replace(card.event, line=int(line), text=text) if line and isinstance(text, str) and text else card.event


# -- processes -----------------------------------------------------------------------------------------------------


def guests(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Each process of the job has a GPU of its own, and several hold memory on one that is another's as well."""
    for node in nodes(run):
        job = _of_job(run, node)
        on: dict[int, list[Holder]] = defaultdict(list)
        for one in job:
            for index in one.held:
                on[index].append(one)
        crowded = [index for index, holders in on.items() if len(holders) > 1]
        if len(crowded) != 1:
            continue
        (index,) = crowded
        strangers = [one for one in on[index] if len(one.held) == 2]
        owners = [one for one in on[index] if len(one.held) == 1]
        if not strangers or not owners or 2 * len(strangers) < len(job) - 1 or len(job) < 2:
            continue
        if len(strangers) + len(owners) < len(on[index]):
            continue
        yield _beside_failures(_as_guests(run, rule, node, index, strangers), found)


def _beside_failures(one: Finding, found: Sequence[Finding]) -> Finding:
    """A remark, where something has failed."""
    return replace(one, severity="warning") if any(other.severity == "error" for other in found) else one


def _as_guests(run: Run, rule: Rule, node: Node, index: int, strangers: Sequence[Holder]) -> Finding:
    sizes = [size for one in strangers if (size := one.held[index]) is not None]
    total = node.cards[index].number("total") if index in node.cards else None
    matters = bool(sizes) and (not total or sum(sizes) >= _MATTERS * total)
    ranks = [rank for one in strangers if (rank := _rank_of_guest(run, node, one, index)) is not None]
    ranks = sorted(set(ranks)) if len(set(ranks)) == len(strangers) else []
    fields = {
        "gpu": node.named(index),
        "count": str(len(strangers)),
        "held": f"{sum(sizes) / 1024:.1f} GiB" if sizes else "memory",
        **({"accused": listed(ranks)} if ranks else {}),
    }
    events = [one.events[index] for one in strangers[:2]] + [strangers[0].events[_own(strangers[0], index)]]
    finding = on_events(rule, events, ranks, fields)
    return finding if matters else replace(finding, severity="warning")


def _own(one: Holder, shared: int) -> int:
    return next(index for index in one.held if index != shared)


def _rank_of_guest(run: Run, node: Node, one: Holder, shared: int) -> int | None:
    rank = places(run).rank_of(one.pid, node.host or None)
    card = node.cards.get(_own(one, shared))
    return _rank_of(run, node, card) if rank is None and card is not None else rank


def piled_up(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Several processes of the job have only one GPU between them, and others are empty."""
    for node in nodes(run):
        job = _of_job(run, node)
        on: dict[int, list[Holder]] = defaultdict(list)
        for one in job:
            on[min(one.held)].append(one)
        empty = [card for card in node.cards.values() if not node.on(card.index) and _is_empty(card)]
        lacking = len(job) - len(on)
        if lacking < 1 or len(empty) < lacking or any(len(one.held) > 1 for one in job) or not _whole(run, node, job):
            continue
        index, holders = max(on.items(), key=lambda item: len(item[1]))
        fields = {"gpu": node.named(index), "count": str(len(holders)), "empty": listed([card.index for card in empty])}
        events = [one.events[index] for one in holders[:3]] + [card.event for card in empty[:1]]
        yield _beside_failures(on_events(rule, events, (), fields), found)


def _whole(run: Run, node: Node, job: Sequence[Holder]) -> bool:
    """These are a job's, and not several that somebody has started one after the other: the log knows them, or there
    are as many as the job has ranks, or as there are GPUs."""
    known = places(run)
    told = all(known.rank_of(one.pid, node.host or None) is not None for one in job)
    return told or len(job) in (_size(run), len(node.cards))


def _is_empty(card: Card) -> bool:
    used, total = card.number("used"), card.number("total") or 0
    return used is not None and used <= max(_EMPTY * total, _EMPTY_MIB) and (card.number("busy_then") or 0) < _WORKS


def held_by_strangers(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A rank ran out of a GPU's memory, and a process that is none of the job's holds much of it."""
    known = places(run)
    for oom in found:
        text = oom.evidence[0].event.text
        if oom.symptom != _OOM or oom.severity != "error":
            continue
        named = {int(pid) for pid in _OTHER.findall(text[:8_000])[:16]}
        for node in nodes(run):
            foreign = [
                (one, index)
                for one in node.holders
                for index in one.held
                if known.rank_of(one.pid, node.host or None) is None
                and len(one.held) == 1
                and (one.pid in named or (_holds_much(node, one, index) and _is_meant(run, node, index, oom)))
                and _is_foreign(run, node, one, index, named)
            ]
            if foreign:
                one, index = foreign[0]
                held = f"{(one.held[index] or 0) / 1024:.1f} GiB"
                shown = f"{one.pid} ({one.name})" if one.name else str(one.pid)
                fields = {"gpu": node.named(index), "pid": str(one.pid), "process": shown, "held": held}
                told = on_events(rule, [one.events[index], oom.evidence[0].event], oom.ranks, fields)
                yield replace(told, severity="info") if of_another(one.name, oom.evidence[0].event) else told
                return


def _holds_much(node: Node, one: Holder, index: int) -> bool:
    size, card = one.held[index], node.cards.get(index)
    total = card.number("total") if card else None
    return size is not None and total is not None and size >= _MOST_OF_IT * total


def _is_meant(run: Run, node: Node, index: int, oom: Finding) -> bool:
    """The GPU on which memory ran out: its rank's, or of the number in the message; another host's is not."""
    host = oom.evidence[0].event.host
    if host and node.host and short(host) != node.host:
        return False
    card = node.cards.get(index)
    rank = _rank_of(run, node, card) if card else None
    if rank is not None and oom.ranks:
        return rank in oom.ranks
    said = _GPU.search(oom.evidence[0].event.text)
    return said is not None and int(said[1]) == index


def _is_foreign(run: Run, node: Node, one: Holder, index: int, named: set[int]) -> bool:
    """The log knows the job's processes, and it is none of them; or those are gone, and it is still there; or the
    message says that it is another, and nobody else shares a GPU."""
    if len(places(run).ranks_of_pid) >= max(2, _size(run)):
        return True
    computing = (other for other in node.holders if other.kind in _COMPUTES)
    if len(node.on(index)) == 1 and _size(run) > 1 and all(index in other.held for other in computing):
        return True
    if one.pid not in named or len(node.on(index)) != 2:
        return False
    return all(len(node.on(other)) <= 1 for other in node.cards if other != index)

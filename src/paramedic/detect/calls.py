"""What each rank called on each process group, as the flight recorder kept it: `trace` events made readable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from paramedic.detect.once import once
from paramedic.detect.stated import stated
from paramedic.model import Event, Run
from paramedic.regex import regex

_NATURAL = regex(r"[0-9]{1,15}")
_MOST = 1 << 21
_DIMENSIONS = 16
_REDUCED = ("all_reduce", "allreduce", "reduce", "_reduce_oop", "allreduce_coalesced", "all_reduce_barrier")
_SCATTERED = ("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced")
_SAME_INPUT = frozenset([*_REDUCED, *_SCATTERED])
_GATHERED = ("all_gather", "_allgather_base", "_all_gather_base", "all_gather_single")
_SAME_OUTPUT = frozenset([*_GATHERED, "all_gather_into_tensor_coalesced"])
_EXCHANGED = ("all_to_all", "alltoall", "all_to_all_single", "alltoall_base")
_FLAT = ("_allgather_base", "_all_gather_base")
_LONG_ROW = 1 << 16
UNKNOWN = "?"
"""What came out of older calls is not kept."""
_ROOTED = {"gather": "outs", "scatter": "ins"}


class Call(NamedTuple):
    """One call as recorded. Sizes are written `4x2,8`; types of several tensors with commas."""

    op: str
    ins: str
    outs: str
    in_types: str
    out_types: str
    site: str

    @property
    def told(self) -> str:
        sizes = self.ins or self.outs.strip(UNKNOWN)
        return f"{self.op} of {_short(sizes)} {_types(self.in_types or self.out_types)}" if sizes else self.op

    @property
    def types(self) -> str:
        """What must be alike: of a scatter the root alone has inputs, of a gather the root alone has outputs."""
        return _types(self.in_types if self.op != "scatter" else self.out_types)

    @property
    def sizes(self) -> str:
        """What must be alike, in elements: all of it, one side of it, or nothing where ranks may differ."""
        if self.op in _SAME_INPUT:
            return _elements(self.ins)
        if self.op in _SAME_OUTPUT:
            return str(sum(map(int, _elements(self.outs).split(",")))) if self.outs not in ("", UNKNOWN) else ""
        return _elements(self.ins) if self.op == "broadcast" and "Byte" not in self.in_types else ""

    @property
    def bulk(self) -> tuple[str, str]:
        """What a send and its receive must have in common."""
        return _elements(self.ins or self.outs), _types(self.in_types or self.out_types)

    @property
    def exchanged(self) -> tuple[int, int] | None:
        """Elements that go out and come in: of all members together, as many of each."""
        if self.op not in _EXCHANGED or self.outs in ("", UNKNOWN) or not self.ins:
            return None
        gives, takes = (sum(map(int, _elements(sizes).split(","))) for sizes in (self.ins, self.outs))
        return gives, takes

    @property
    def is_shard(self) -> bool:
        """A gather of one long row without a shape: parameters that were flattened to be sharded."""
        return self.op in _FLAT and self.ins.isdigit() and natural(self.ins, 0) >= _LONG_ROW

    @property
    def has_root_side(self) -> bool | None:
        """Whether this rank takes itself for the root; None where the record does not tell. NCCL's group records one
        tensor that is none for the others, which has the size 0."""
        side = _ROOTED.get(self.op)
        return getattr(self, side) not in ("", "0") if side and self.outs != UNKNOWN else None


class Signature(NamedTuple):
    """What must be alike on all ranks at one sequence number."""

    op: str
    types: str
    sizes: str


@dataclass(frozen=True, slots=True)
class Peer:
    """A send or receive that is not finished, in ranks of the job."""

    at: int
    sends: bool
    to: int
    call: Call


@dataclass(frozen=True)
class Part:
    """One rank's part in a group. `calls` has the table's line for each sequence number."""

    event: Event
    rank: int
    last: int
    calls: Mapping[int, int]
    table: tuple[tuple[Call, ...], ...]
    open: tuple[int, ...]
    """Sequence numbers that are not finished."""
    open_at: int
    last_at: int
    wrapped: bool
    peers: tuple[tuple[int, str, Call], ...]
    """(place, `1->2` within the group, call) of sends and receives that are not finished; a batch has one place."""
    known_peers: frozenset[str]
    done_peers: frozenset[tuple[str, str]]
    """(`send 1->2`, site) of what has been finished at least once."""
    posted: Mapping[str, int]
    """How many sends and receives of each kind there are, finished or not."""
    sent: Mapping[int, tuple[int, str]]
    """Place → (number, `send 1->2`) of the last of them, as the group counts them; a batch has one number."""
    started: tuple[int, ...]
    """Sequence numbers that are not finished, but that the GPU has begun; nothing where beginnings are not noted."""
    timed: bool
    moves: bool
    """Something was finished just before the record was written."""
    usual: bool
    """The first that is not finished came after the same call before."""
    age_ms: int
    timeout_ms: int
    durations: Mapping[int, int]
    """Sequence number → milliseconds that it took on this rank's GPU, or -1; of the last calls."""
    span_ms: int
    completed: int
    """The last that the group says it has completed, whether or not the record still has it; -1 where it does not."""

    @cached_property
    def signatures(self) -> tuple[Signature, ...]:
        return tuple(signature(calls) for calls in self.table)

    @cached_property
    def halves(self) -> Mapping[str, list[tuple[int, Call]]]:
        """(place, call) of the sends and receives that are not finished, by what they are."""
        found: dict[str, list[tuple[int, Call]]] = {}
        for at, told, call in self.peers:
            found.setdefault(told, []).append((at, call))
        return found

    def call(self, seq: int) -> Call | None:
        number = self.calls.get(seq)
        return self.table[number][0] if number is not None else None


@dataclass
class Group:
    name: str
    desc: str
    members: tuple[int, ...]
    parts: dict[int, Part] = field(default_factory=dict)

    @property
    def told(self) -> str:
        return f"group {self.name}" + (f" ({self.desc})" if self.desc not in ("", "undefined") else "")


@once
def groups(run: Run) -> list[Group]:
    """Every process group that somebody recorded; of one name there may be several, with other members."""
    facts = stated_groups(run)
    found: dict[tuple[str, str | tuple[int, ...]], Group] = {}
    decoded: dict[tuple[str, ...], Any] = {}
    for event in run.of_kind("trace"):
        if event.rank is None or "group" not in event.fields:
            continue
        name, told = str(event.fields["group"]), _text(event, "members")
        stated = next((ranks for ranks in facts.get(name, ()) if event.rank in ranks), None)
        group = found.get((name, stated or told))
        if group is None:
            group = Group(name, _text(event, "desc"), stated or _numbers_in(told))
            found[name, stated or told] = group
        group.parts[event.rank] = _part(event, decoded)
    for group in found.values():
        _count_silent(group)
    return [_with_members(group, run) for group in sorted(found.values(), key=lambda one: (one.name, one.members))]


def _count_silent(group: Group) -> None:
    """A dump of active calls alone has nothing of a group in which a rank waits for nothing: how far it came there, it
    counts under the number that the group has on its other members."""
    numbers = {number for part in group.parts.values() if (number := _text(part.event, "number"))}
    sends = any(part.known_peers for part in group.parts.values())  # which are counted with the rest
    for rank, part in group.parts.items() if len(numbers) == 1 and not sends else ():
        for line in _text(part.event, "counts").split("\n"):
            number, *counts = line.split(" ")
            if number in numbers and len(counts) == 2:
                last, completed = (natural(one, -1) for one in counts)
                group.parts[rank] = replace(part, last=last, completed=completed)


def stated_groups(run: Run) -> dict[str, list[tuple[int, ...]]]:
    """Who belongs to a group, where somebody who asked torch has said so."""
    by_name: dict[str, list[tuple[int, ...]]] = {}
    for fact in run.facts:
        said = fact.value if fact.name == "group" else None
        if isinstance(said, str):
            try:
                said = stated(said)
            except (ValueError, RecursionError):
                continue
        if isinstance(said, dict) and isinstance(ranks := said.get("ranks"), list | tuple):
            members = tuple(sorted({rank for rank in ranks if isinstance(rank, int)}))
            if members not in by_name.setdefault(str(said.get("name")), []):
                by_name[str(said.get("name"))].append(members)
    return by_name


def _with_members(group: Group, run: Run) -> Group:
    if not group.members:
        whole = group.desc == "default_pg"
        group.members = tuple(sorted(run.expected_ranks | group.parts.keys() if whole else group.parts))
    return group


def _part(event: Event, decoded: dict[tuple[str, ...], Any]) -> Part:
    """Ranks that called alike share what was decoded."""
    texts = tuple(_text(event, name) for name in ("seqs", "calls", "table"))
    if texts not in decoded:
        table = tuple(_calls(line) for line in texts[2].split("\n")) if texts[2] else ()
        order = [natural(one, len(table)) for one in texts[1].split(" ")[:_MOST]] if texts[1] else []
        seqs = _seqs(texts[0])
        decoded[texts] = {seq: row for seq, row in zip(seqs, order, strict=False) if row < len(table)}, table, seqs
    calls, table, seqs = decoded[texts]
    peers = [_calls(line)[0] for line in _text(event, "peers").split("\n") if line]
    return Part(
        event=event,
        rank=event.rank or 0,
        last=max(_whole(event, "last"), seqs[-1] if seqs else -1),
        calls=calls,
        table=table,
        open=tuple(seqs[place] for place in _numbers_in(_text(event, "open")) if place < len(seqs)),
        open_at=_whole(event, "open_at"),
        last_at=_whole(event, "last_at"),
        wrapped=bool(event.fields.get("wrapped")),
        peers=tuple(_open_peers(_text(event, "peers_open"), peers)),
        known_peers=frozenset(f"{one.op} {one.ins or one.outs}" for one in peers),
        done_peers=frozenset((one.op, one.site) for one in _at_places(peers, _text(event, "peers_done"))),
        posted=dict(_posted(_text(event, "posted"))),
        sent=dict(_sent(_text(event, "sent"), peers)),
        started=tuple(seqs[place] for place in _numbers_in(_text(event, "started")) if place < len(seqs)),
        timed=bool(event.fields.get("timed")),
        moves=bool(event.fields.get("moves")) and event.fields.get("backend") != "gloo",
        usual=event.fields.get("usual") is not False,
        age_ms=_whole(event, "age_ms"),
        timeout_ms=_whole(event, "timeout_ms"),
        durations=_durations(_text(event, "durations"), seqs),
        span_ms=_whole(event, "span_ms"),
        completed=_whole(event, "completed"),
    )


def _at_places(calls: list[Call], text: str) -> Iterator[Call]:
    yield from (calls[place] for place in _numbers_in(text) if place < len(calls))


def _posted(text: str) -> Iterator[tuple[str, int]]:
    for line in text.split("\n") if text else ():
        count, _, op = line.partition(" ")
        yield op, natural(count, 0)


def _sent(text: str, peers: list[Call]) -> Iterator[tuple[int, tuple[int, str]]]:
    for one in text.split(" ") if text else ():
        place, number, row, *_ = f"{one}::".split(":")
        if (known := natural(row, len(peers))) < len(peers) and natural(number, 0):
            yield natural(place, -1), (natural(number, 0), peers[known].op)


def _durations(text: str, seqs: list[int]) -> dict[int, int]:
    took = [natural(one, -1) for one in text.split(" ")] if text else []
    return dict(zip(seqs[-len(took) :], took, strict=False)) if took else {}


def _open_peers(text: str, peers: list[Call]) -> Iterator[tuple[int, str, Call]]:
    for one in text.split(" ") if text else ():
        row, _, at = one.partition("@")
        if (number := natural(row, len(peers))) < len(peers) and (when := natural(at, -1)) >= 0:
            yield when, peers[number].op, peers[number]


def signature(calls: tuple[Call, ...]) -> Signature:
    if len(calls) == 1:
        return Signature(calls[0].op, calls[0].types, calls[0].sizes)
    parts = zip(*((one.op, one.types, one.sizes) for one in calls), strict=True)
    return Signature(*(" + ".join(part) for part in parts))


def _calls(line: str) -> tuple[Call, ...]:
    return tuple(Call._make(f"{one}|||||".split("|", 6)[:6]) for one in line.split("\t"))


def natural(text: str, otherwise: int) -> int:
    """A recording is a stranger's file: what is no number of a usual length is taken for `otherwise`."""
    return int(text) if _NATURAL.fullmatch(text) else otherwise


def _seqs(text: str) -> list[int]:
    found: list[int] = []
    for run in text.split(" ") if text else ():
        first, _, count = run.partition("+")
        start = natural(first.removeprefix("-"), -1)
        if start >= 0:
            start = -start if first.startswith("-") else start
            found += range(start, start + min(natural(count, 0), _MOST - len(found)))
    return found


def _numbers_in(text: str) -> tuple[int, ...]:
    """`0-7,9` → 0, 1, … 7, 9."""
    found: list[int] = []
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        start, end = natural(first, 0), natural(last or first, -1)
        found += range(start, min(end + 1, start + _MOST - len(found)))
    return tuple(found)


def _text(event: Event, name: str) -> str:
    value = event.fields.get(name, "")
    return value if isinstance(value, str) else ""


def _whole(event: Event, name: str) -> int:
    value = event.fields.get(name, -1)
    return value if isinstance(value, int) else -1


def _elements(sizes: str) -> str:
    return (
        ",".join(str(prod(natural(size, 1) for size in one.split("x")[:_DIMENSIONS])) for one in sizes.split(","))
        if sizes
        else ""
    )


def _types(types: str) -> str:
    """`Float` for `Float,Float`."""
    return ",".join(dict.fromkeys(types.split(",")))


def _short(sizes: str) -> str:
    shown = sizes.split(",")
    return f"[{sizes}]" if len(shown) <= 4 else f"[{','.join(shown[:3])}, … {len(shown)} tensors]"

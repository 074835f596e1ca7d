"""The entries of a flight-recorder dump, column by column: at C speed, and without trust in what they hold."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, pairwise, repeat
from operator import itemgetter
from typing import Any, NamedTuple

MOST_ENTRIES = 1 << 20
IN_FULL = 256
"""Of so many last calls of a rank it is kept where in the program they were made, and what came out: a rank that is
stuck stands among them, and stacks cost more than all the rest."""
_MOST_WEIGHT = 1 << 25
"""Items in all of a column's lists together: shared ones can be few bytes and yet endless to go through."""
_MOST_FRAMES = 64
_LAST_SENT = 32
_TIMES = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
_LONG_AGO = 30 * 10**9
_flat = chain.from_iterable
_lengths = partial(map, len)
_identities = partial(map, id)


class NotADump(Exception):  # noqa: N818
    """Not what the flight recorder writes; the text continues a sentence that names the file."""


class _Numbers(dict[Any, int]):
    """Numbers what it is asked for, in the order in which it first comes."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


@dataclass(frozen=True, slots=True)
class Group:
    """One process group on one rank. `calls` are numbers of lines of `table`, one for each of `seqs`."""

    name: str
    number: str
    """The group's number on this rank, by which `pg_status` knows it."""
    rows: tuple[int, ...]
    table: tuple[tuple[int, ...], ...]
    """Rows that have one sequence number, since they were coalesced, stand together."""
    calls: str
    seqs: str
    last_seq: int
    open: str
    """Places in `calls` that are not finished."""
    open_at: int
    """Place among all entries of the rank of the first that is not finished; -1 if there is none."""
    last_at: int
    peers: tuple[int, ...]
    peers_done: str
    """Places in `peers` of what has been finished at least once."""
    peers_open: str
    """`row@place` of sends and receives that are not finished; those that were batched have one place."""
    posted: str
    """`56 send 0->1`, one in a line: how many there are of each, finished or not."""
    sent: str
    """`place:number:row` of the last sends and receives, by the number that the group gives them."""
    started: str
    """Places in `calls` that are not finished, but that the GPU has begun."""
    usual: bool
    """What is not finished first follows what it has followed before."""
    durations: str
    """How many milliseconds each of the last calls took on the GPU, -1 where that is not known."""
    span_ms: int
    """Between the first and the last of these."""
    age_ms: int
    """For how long the first that is not finished has been so, at least: the recorder notes when it found it begun."""
    timeout_ms: int
    since_s: int
    """When the first call that is not finished was made, by the host's clock."""


class Row(NamedTuple):
    """A distinct call; of older ones neither what comes out nor the stack is kept."""

    name: str
    ins: Sequence[Sequence[int]]
    outs: Sequence[Sequence[int]] | None
    in_types: str
    out_types: str
    frames: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Columns:
    entries: Sequence[Mapping[str, Any]]
    keys: Sequence[tuple[Any, ...]]
    frames: Mapping[int, Sequence[Any]]
    rows: Sequence[int]
    names: Sequence[str]
    seqs: Sequence[int]
    done: Sequence[bool]
    first_open: int
    """Place of the first that is not finished, in whichever group; -1 if there is none."""
    peers: frozenset[int]
    hollow: frozenset[int]
    """Rows that only end a coalesced group of calls."""
    wrapped: bool
    batches: Mapping[int, int]
    """Place of a batched call → place of the first of its batch."""
    timed: bool
    """The recorder was told to note when calls begin."""
    moves: bool
    """Something was finished so shortly before that the watchdog, which looks ten times a second, had not seen it."""

    def row(self, number: int) -> Row:
        name, ins, in_lengths, in_types, *rest = self.keys[number]
        if not rest:
            return Row(name, _cut(ins, in_lengths), None, in_types, "", ())
        outs, out_lengths, out_types, _ = rest
        return Row(name, _cut(ins, in_lengths), _cut(outs, out_lengths), in_types, out_types, self.frames[number])

    def groups(self) -> Iterator[Group]:
        places: dict[str, list[int]] = defaultdict(list)
        for place, name in enumerate(self.names):
            places[name].append(place)
        for name, theirs in places.items():
            yield self._group(name, theirs)

    def _group(self, name: str, places: list[int]) -> Group:
        rows, seqs, done = self.rows, self.seqs, self.done
        special = self.peers | self.hollow
        between = [place for place in places if rows[place] in self.peers] if self.peers else []
        if special:
            places = self._collectives(places)
        called: list[Any] = [rows[place] for place in places]
        numbers = [seqs[place] for place in places]
        finished = [done[place] for place in places]
        first = numbers[0] if numbers else 0
        if numbers == list(range(first, first + len(numbers))):
            table = {row: (row,) for row in dict.fromkeys(called)}
            runs = f"{first}+{len(numbers)}" if numbers else ""
        else:
            called, numbers, finished, places = _together(called, numbers, finished, places)
            table = {row: row for row in dict.fromkeys(called)}
            runs = " ".join(f"{start}+{count}" for start, count in _runs(numbers))
        number_of = {row: str(number) for number, row in enumerate(table)}
        unfinished = [] if all(finished) else [place for place, is_done in enumerate(finished) if not is_done]
        peers = dict.fromkeys(rows[place] for place in between)
        peer_number = {row: number for number, row in enumerate(peers)}
        waiting = [place for place in between if not done[place]]
        ended = {peer_number[rows[place]] for place in between if done[place]}
        first_open = [places[unfinished[0]]] if unfinished else []
        open_at = min([*first_open, *waiting[:1]], default=-1)
        begun = [place for place in unfinished if self.entries[places[place]].get("state") == "started"]
        return Group(
            name=name,
            number=self._number((places or between or [-1])[0]),
            rows=tuple(dict.fromkeys(_flat(table.values()))),
            table=tuple(table.values()),
            calls=" ".join(map(number_of.__getitem__, called)),
            seqs=runs,
            last_seq=numbers[-1] if numbers else -1,
            open=ranges(unfinished),
            open_at=self.batches.get(open_at, open_at),
            last_at=max([*places[-1:], *between[-1:]], default=-1),
            peers=tuple(peers),
            peers_done=ranges(sorted(ended)),
            peers_open=" ".join(
                f"{peer_number[rows[place]]}@{self.batches.get(place, place)}" for place in waiting[:1000]
            ),
            posted="\n".join(f"{count} {op}" for op, count in self._posted(between).items()),
            sent=" ".join(f"{place}:{self._sent(place)}:{peer_number[rows[place]]}" for place in between[-_LAST_SENT:]),
            started=ranges(begun),
            durations=" ".join(map(str, map(self._duration, places[-IN_FULL:]))) if self.timed else "",
            span_ms=self._between(places[-IN_FULL:]) if self.timed else 0,
            usual=open_at != self.first_open or self._usual(open_at),
            age_ms=self._age(open_at) if open_at == self.first_open else 0,
            timeout_ms=self._time(open_at, "timeout_ms"),
            since_s=self._time(open_at, "time_created_ns") // 1_000_000_000,
        )

    def _posted(self, between: Iterable[int]) -> Counter[str]:
        found: Counter[str] = Counter()
        for row, count in Counter(self.rows[place] for place in between).items():
            found[self.keys[row][0].rpartition(":")[2][:80].replace("\n", " ")] += count
        return found

    def _sent(self, place: int) -> int:
        number = self.entries[place].get("p2p_seq_id")
        return number if type(number) is int and 0 <= number < 1 << 48 else 0

    def _usual(self, place: int) -> bool:
        """Whether this came after the same call before, in whichever groups; not known of the first."""
        if place < 1:
            return True
        kinds = [(name, self.keys[row][0]) for name, row in zip(self.names[: place + 1], self.rows, strict=False)]
        here = (kinds[-2], kinds[-1])
        return here in pairwise(kinds[:-1])

    def _age(self, place: int) -> int:
        """A dump does not say when it was written. What it first found begun then, it found at that very time."""
        created = self._time(place, "time_created_ns")
        later = range(max(place, len(self.entries) - IN_FULL), len(self.entries)) if created else ()
        seen = [self._time(one, name) for one in (place, *later) for name in _TIMES]
        return max(0, max(seen) - created) // 1_000_000 if created else 0

    def _duration(self, place: int) -> int:
        said = self.entries[place].get("duration_ms")
        return round(said) if isinstance(said, int | float) and 0 <= said < 1e9 else -1

    def _between(self, places: Sequence[int]) -> int:
        times = [time for place in places if (time := self._time(place, "time_created_ns"))]
        return (max(times) - min(times)) // 1_000_000 if times else 0

    def _time(self, place: int, name: str) -> int:
        return _time_of(self.entries[place], name) if place >= 0 else 0

    def _number(self, place: int) -> str:
        said = self.entries[place].get("pg_id") if place >= 0 else None
        return str(said)[:20] if isinstance(said, int) else ""

    def _collectives(self, places: list[int]) -> list[int]:
        """Without sends and receives, and without the mark at the end of coalesced calls: its number is theirs. Where
        the record begins in the middle, the calls before the first mark may be lost, and what they were with them."""
        kept: list[int] = []
        after_peer = False
        seen: set[int] = set()
        for place in places:
            row = self.rows[place]
            if row in self.peers:
                after_peer = True
            elif row not in self.hollow or not (after_peer or self.seqs[place] in seen or self._is_cut(place, places)):
                kept.append(place)
                seen.add(self.seqs[place])
                after_peer = False
        return kept

    def _is_cut(self, place: int, places: Sequence[int]) -> bool:
        return self.entries[place].get("is_p2p") is True or (self.wrapped and place == places[0])


def columns(entries: Sequence[Any]) -> Columns:
    """Raises NotADump for anything that the recorder would not have written."""
    try:
        return _columns(entries)
    except (TypeError, ValueError, OverflowError, KeyError, RecursionError, MemoryError):
        raise NotADump("does not hold what the flight recorder writes") from None


def _columns(entries: Sequence[Any]) -> Columns:
    if len(entries) > MOST_ENTRIES or not {*map(type, entries)} <= {dict}:
        raise ValueError
    older, newer = entries[:-IN_FULL], entries[-IN_FULL:]
    states, retired, seqs, groups, *calls = _columns_of(entries, {**_STATE, **_BRIEF})
    keys = _Numbers()
    rows = [*map(keys.__getitem__, _in_brief([column[: len(older)] for column in calls]))]
    stacks = _stacks(newer)
    rows += map(keys.__getitem__, _in_full(newer, stacks))
    if entries and "collective_seq_id" not in entries[0]:  # up to version 2.1 there was one number for everything
        seqs = [entry.get("seq_id", 0) for entry in entries]
    if entries and "process_group" not in entries[0]:
        groups = [(str(entry.get("pg_name", entry.get("pg_id", "")))[:200], "") for entry in entries]
    ops = {number: key[0].rpartition(":")[2].split(" ", 1)[0] for key, number in keys.items()}
    first = entries[0].get("record_id", 0) if entries else 0
    names = [*_joined("\t", groups)]
    hollow = frozenset(number for number, op in ops.items() if op == "coalesced")
    done = [state == "completed" or over is True for state, over in zip(states, retired, strict=True)]
    numbers = array("q", seqs)
    batches = _batches(entries, [row in hollow for row in rows], names, numbers, done) if hollow else {}
    return Columns(
        entries=entries,
        keys=tuple(keys),
        frames=dict(zip(rows[len(older) :], stacks, strict=True)),
        rows=rows,
        names=names,
        seqs=numbers,
        done=done,
        first_open=done.index(False) if False in done else -1,
        peers=frozenset(number for number, op in ops.items() if op in ("send", "recv")),
        hollow=hollow,
        wrapped=isinstance(first, int) and first > 0,
        batches=batches,
        timed="started" in states or any("duration_ms" in entry for entry in newer),
        moves=True in retired and _moves(newer),
    )


def _moves(entries: Sequence[Mapping[str, Any]]) -> bool:
    """A watchdog that stands still itself retires nothing either: then what was called last is long ago."""
    unseen = [entry for entry in entries if entry.get("state") == "completed" and entry.get("retired") is False]
    ended = max((_time_of(entry, _TIMES[2]) for entry in unseen), default=0)
    called = max((_time_of(entry, _TIMES[0]) for entry in entries), default=0)
    return bool(unseen) and ended - called < _LONG_AGO


def _time_of(entry: Mapping[str, Any], name: str) -> int:
    said = entry.get(name)
    return said if type(said) is int and 0 < said < 1 << 63 else 0


def _batches(
    entries: Sequence[Mapping[str, Any]],
    ends: Sequence[bool],
    names: Sequence[str],
    seqs: Sequence[int],
    done: list[bool],
) -> dict[int, int]:
    """Batched calls have no state of their own: the mark behind them, which has their numbers, ends them all."""
    first_of: dict[int, int] = {}
    batch: dict[str, list[int]] = {}
    numbers: dict[str, tuple[int, int]] = {}
    for place, (entry, is_end, name) in enumerate(zip(entries, ends, names, strict=True)):
        between = entry.get("p2p_seq_id")
        here = seqs[place], between if type(between) is int else 0
        if numbers.get(name) != here:
            batch[name] = []
        numbers[name] = here
        batch[name].append(place)
        if is_end:
            theirs = batch.pop(name)
            first_of.update(dict.fromkeys(theirs, theirs[0]))
            for one in theirs:
                done[one] = done[place]
            numbers.pop(name)
    return first_of


_STATE: Mapping[str, Any] = {"state": "", "retired": False, "collective_seq_id": 0, "process_group": ("", "")}
_BRIEF: Mapping[str, Any] = {"profiling_name": "", "input_sizes": (), "input_dtypes": ()}
_FULL: Mapping[str, Any] = {**_BRIEF, "output_sizes": (), "output_dtypes": ()}


def _columns_of(entries: Sequence[dict[str, Any]], names: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
    """In one pass over the entries; old recorders lack some columns."""
    try:
        return [*zip(*map(itemgetter(*names), entries), strict=True)] or [()] * len(names)
    except KeyError:
        return [[entry.get(name, default) for entry in entries] for name, default in names.items()]


def _in_brief(columns: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    names, ins, in_types = columns
    _must_be_text(names)
    return zip(names, *_sizes(ins), _types(in_types), strict=False)


def _in_full(entries: Sequence[dict[str, Any]], stacks: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    names, ins, in_types, outs, out_types = _columns_of(entries, _FULL)
    _must_be_text(names)
    seen = map(tuple, map(_identities, stacks))
    return zip(names, *_sizes(ins), _types(in_types), *_sizes(outs), _types(out_types), seen, strict=False)


def _must_be_text(column: Iterable[Any]) -> None:
    if not {*map(type, column)} <= {str}:
        raise TypeError


def _sizes(column: Sequence[Any]) -> tuple[Iterable[Any], Iterable[Any]]:
    """Each call's sizes in one row, and how many belong to each tensor. Only numbers: all else could be endless."""
    single = {*map(len, column)} == {1}
    if single:
        column = [*map(itemgetter(0), column)]
    _weigh(column, inner=not single)
    flat = [*map(tuple, column if single else map(_flat, column))]
    sum(map(sum, flat))
    return flat, repeat(None) if single else map(tuple, map(_lengths, column))


def _types(column: Sequence[Any]) -> Iterable[str]:
    if {*map(len, column)} != {1}:
        return _joined(",", column)
    single = [*map(itemgetter(0), column)]
    _must_be_text(single)
    return single


def _joined(by: str, column: Sequence[Any]) -> Iterator[str]:
    _weigh(column)
    return map(by.join, column)


def _stacks(entries: Sequence[dict[str, Any]]) -> list[Any]:
    stacks = [entry.get("frames", ())[:_MOST_FRAMES] for entry in entries]
    if not {*map(type, stacks)} <= {list, tuple}:
        raise TypeError
    return stacks


def _weigh(column: Sequence[Any], inner: bool = True) -> None:
    if sum(map(len, column)) > _MOST_WEIGHT or (inner and sum(map(len, _flat(column))) > _MOST_WEIGHT):
        raise ValueError


def _cut(flat: Sequence[Any], lengths: Sequence[int] | None) -> list[Sequence[Any]]:
    if lengths is None:
        return [flat]
    rest = iter(flat)
    return [[next(rest) for _ in range(length)] for length in lengths]


def _together(
    called: list[int], numbers: list[int], finished: list[bool], places: list[int]
) -> tuple[list[Any], list[int], list[bool], list[int]]:
    """Calls that follow each other with one number are one; numbers that go back are of an earlier life: left out."""
    rows: list[Any] = []
    seqs: list[int] = []
    ends: list[bool] = []
    firsts: list[int] = []
    for seq, some in groupby(range(len(numbers)), numbers.__getitem__):
        theirs = list(some)
        while seqs and seqs[-1] >= seq:
            for column in (rows, seqs, ends, firsts):
                column.pop()
        rows.append(tuple(called[one] for one in theirs))
        seqs.append(seq)
        ends.append(all(finished[one] for one in theirs))
        firsts.append(places[theirs[0]])
    return rows, seqs, ends, firsts


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(first, how many) of numbers that follow each other."""
    start, count = 0, 0
    for number in numbers:
        if count and number == start + count:
            count += 1
            continue
        if count:
            yield start, count
        start, count = number, 1
    if count:
        yield start, count


def ranges(numbers: Iterable[int]) -> str:
    """`0-7,9`."""
    return ",".join(f"{first}-{first + count - 1}" if count > 1 else str(first) for first, count in _runs(numbers))

"""One text log → Events: the lines that matter, tracebacks, torchrun's table, and each rank's last activity.

Bytes are read once, in big blocks. The prefilter says where to look; between its hits nothing is decoded.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, BinaryIO, NamedTuple

from paramedic.clocks import Stamp, find_stamp, first_time
from paramedic.collect import elastic, smi, stacks, tracebacks
from paramedic.collect.activity import (
    bar,
    closing,
    complains,
    ended,
    finished,
    left_well,
    out_of_data,
    shows_progress,
    steps,
    tested,
)
from paramedic.collect.blocks import MAX_LINE, NEWLINE, Block, blocks, context, line_before, piece_end, piece_start
from paramedic.collect.guarded import shape
from paramedic.collect.identity import facts_in, ranks_stated
from paramedic.collect.layouts import LITERALS as WHO_LITERALS
from paramedic.collect.layouts import Peeled, Prefixes, Who, glued, may_be_wrapped, plain, snippet_ranks, unwrapped
from paramedic.collect.metrics import Meter
from paramedic.collect.rosters import processes_on_a_node, roster
from paramedic.collect.stacks import StackReader
from paramedic.collect.system import looked
from paramedic.collect.tracebacks import Traceback, process_in, rank_named
from paramedic.model import Event, Fact, Skipped, Source
from paramedic.prefilter import Prefilter
from paramedic.redact import clipped, clipped_lines, may_hide_something_each, redact

MAX_TEXT = 4_000
MAX_TRACE = 16_000
MAX_CONTEXT = 400
MAX_HOST = 253
MAX_EXITS = 16_384
"""Of one source. One line of srun may name thousands of tasks."""
MAX_KEPT = 8 << 20
"""Of the text of one source's lines: beyond it only the last ones are kept, as much again at most."""
HEAD = 64 << 10
_WELL_BEFORE = 5_000_000_000
TAIL = 64 << 10
LITERALS = (*tracebacks.LITERALS, *elastic.LITERALS, *stacks.LITERALS, *smi.LITERALS, *WHO_LITERALS)

_MAX_RAW = 16_000
_BINARY_SHARE = 0.05
_ODD = bytes(code for code in range(32) if code not in (7, 8, 9, 10, 12, 13, 27))
_MAX_OPEN = 4_096
_SILENCE = 20_000  # lines after which a traceback or a table that was never finished is given up
_COMPLAINTS = 12  # of the tail's lines that speak of an error, the last ones
_LAST_LINES = 8  # in which a program takes its leave
_PROGRESS = 64  # of each rank's lines in the tail that show it, the last ones
_EVIDENCE = 4  # places that one series may need for the lines that show it
_WITH_CONTEXT = 2  # of the lines with one literal so many keep those around them


@dataclass(frozen=True, slots=True)
class Quota:
    """How much is kept from one source, the first ones and the last ones: lines with one literal, and tracebacks."""

    first: int
    last: int
    traces: int

    @classmethod
    def of(cls, source: Source) -> Quota:
        return cls(8, 8, 40) if source.rank is not None else cls(400, 100, 200)


@dataclass(slots=True)
class LogRead:
    source: Source
    events: list[Event] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    rank_is_sure: bool = False
    """torch itself has named the rank; a path may name the local one."""
    stated_rank: int | None = None
    """The one rank that the program says it is, in a file that names none."""
    processes: int = 1
    """So many ranks a launcher in it was asked to start."""
    began: int | None = None
    """By the first time that is written near its top; and the last one near its end."""
    ended: int | None = None


class BinaryInput(Exception):  # noqa: N818
    """The stream is no text."""


def read_log(stream: BinaryIO, source: Source, prefilter: Prefilter) -> LogRead:
    """Raises BinaryInput when the head is no text; everything else is survived and said in `skipped`."""
    head = stream.read(HEAD)
    scan = _Scan(source, prefilter, head)
    for block in blocks(head, stream):
        scan.block(block)
    return scan.finish()


class _Line(NamedTuple):
    """A line, or a piece of it between carriage returns, where it stands in its block."""

    raw: bytes
    numbers: list[int]
    block: Block
    start: int
    end: int


class _Made(NamedTuple):
    """An Event, before it is known who speaks: only the whole file tells."""

    kind: str
    text: str
    seq: int
    line: int
    who: Who
    stamp: Stamp | None
    fields: dict[str, Any]


class _Scan:
    def __init__(self, source: Source, prefilter: Prefilter, head: bytes) -> None:
        self.source = source
        self.prefilter = prefilter
        self.quota = Quota.of(source)
        self.made: list[_Made] = []
        self.unchecked: list[int] = []  # of those, the lines that may still hide something
        self.restarts = elastic.Restarts()
        self.line = 1
        self.bytes = 0
        self.tail = b""
        self.cut_lines = 0
        self.traces: dict[Who, Traceback] = {}
        self.tables: dict[Who, elastic.FailureTable] = {}
        self.stacks: dict[Who, StackReader] = {}
        self.in_stack: set[Who] = set()
        self.look_again = 0
        self.seen: dict[int, int] = defaultdict(int)
        self.full: set[int] = set()  # literals whose quota is used up
        self.late: dict[int, deque[tuple[int, bytes]]] = {}
        self.late_bytes = 0
        self.kept_bytes = 0
        self.dropped = 0
        self.exits = 0
        self.traces_made = 0
        self.traced: set[int | None] = set()
        self.last_traces: deque[_Made] = deque(maxlen=self.quota.traces)
        self.own = prefilter.numbers(LITERALS)
        self.smi = smi.Smi()
        self.of_smi = prefilter.numbers(smi.LITERALS)
        self.last_raised = "\n"
        self.last_head = b""
        """The line right above, where a traceback's head is all that stands there."""
        self.section: int | None = None
        lines = _head_lines(head)
        self.prefixes = Prefixes.of(lines[:400])
        for line in lines:
            self.prefixes.peel(plain(line))
        self.facts = list(facts_in(lines, source))
        self.roster = [*roster(lines, source), *looked(lines, source)]
        self.prefixes.on_a_node = processes_on_a_node(lines)
        self.stated = ranks_stated(lines)
        self.began = first_time(lines)
        self.ended: int | None = None
        self.meter = Meter(source.rank is not None, self.prefixes.peel)

    # -- reading ---------------------------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        self.meter.block(block.lines, self.line, block.last)
        lines, hits = block.lines, self.prefilter.scan(block.lines)
        at, hit, returns = 0, 0, b"\r" in block.lines
        while at < len(lines):
            if not (self.traces or self.tables or self.in_stack or self.smi.open):  # jump to the next hit's line
                while hit < len(hits) and hits[hit][0] <= at:
                    hit += 1
                if hit == len(hits):
                    break
                start = piece_start(lines, at, hits[hit][0] - 1, returns)
                self.line += lines.count(b"\n", at, start)
                at = start
            end, following = piece_end(lines, at, returns)
            numbers = []
            while hit < len(hits) and hits[hit][0] <= end:
                if hits[hit][0] > at:
                    numbers.append(hits[hit][1])
                hit += 1
            whole = following <= len(lines) and lines[following - 1] == NEWLINE
            if end > at or whole:
                self._take(_Line(lines[at:end], numbers, block, at, end))
            self.line += whole
            at = following
        self._check()
        self.line += lines.count(b"\n", at)
        self.bytes += len(lines)
        self.cut_lines += block.cut
        self.tail = (self.tail + lines[-TAIL:])[-TAIL:]

    def _take(self, line: _Line) -> None:
        """One line: give it to what is open, open something, or keep it."""
        if line.raw == self.last_head != b"":
            return  # the same head once more: nothing stood below the first
        self.last_head = b""
        if self.smi.open or not self.of_smi.isdisjoint(line.numbers):
            self.smi.feed(plain(_decoded(line.raw, smi.MAX_LINE)), self.line)
        under_way = self.traces or self.tables or self.in_stack
        if not under_way and not line.numbers:
            return
        if not under_way and self.full.issuperset(line.numbers):
            self._wait(line.raw, line.numbers)
            return
        text = _decoded(line.raw)
        peeled = self.prefixes.peel(plain(text))
        self.section = elastic.section(peeled.text, self.section)
        if self.section is not None and not peeled.by:
            peeled = peeled._replace(rank=self.section, by="launcher")
        while peeled.by == "torch" and (at := glued(peeled.text)) > 0:
            self._take_peeled(peeled._replace(text=peeled.text[:at]), line, text)
            peeled = self.prefixes.peel(peeled.text[at:])
        self._take_peeled(peeled, line, text)

    def _take_peeled(self, peeled: Peeled, line: _Line, text: str) -> None:
        if peeled.who in self.in_stack or (line.numbers and StackReader.begins(peeled.text)):
            self._see_stack(peeled, line)
        if not self.own.isdisjoint(line.numbers):
            self.restarts.note(peeled.text, self.line, peeled.who)
        if ((self.traces or self.tables) and self._belongs(peeled)) or not line.numbers or peeled.by == "echo":
            return
        if "\x1b" not in text and self.own.isdisjoint(line.numbers):
            self._keep(line, line.numbers, text, peeled)
            return
        for failure in elastic.other_ends(peeled.text, self.line) if self.exits <= MAX_EXITS else ():
            if failure.rank is None and failure.local_rank is not None:
                failure.rank = self.prefixes.rank_on_node(failure.local_rank, peeled.stream)
            self._exit(failure)
        if tracebacks.START in peeled.text:
            self._open_trace(peeled, line)
        elif tracebacks.FRAME in peeled.text and tracebacks.begins_without_head(peeled.text):
            self._begin_trace(peeled)
        elif elastic.starts_table(peeled.text):
            table = self.tables.setdefault(peeled.who, elastic.FailureTable())
            table.feed(peeled.text, self.line)
        elif (agent := elastic.agent_line(peeled.text, self.line)) is not None:
            if agent.rank is None and agent.local_rank is not None:
                agent.rank = self.prefixes.rank_on_node(agent.local_rank, peeled.stream)
            self._exit(agent)
        elif wanted := [n for n in line.numbers if n not in self.own]:
            self._keep(line, wanted, text, peeled)

    def _keep(self, line: _Line, wanted: list[int], text: str, peeled: Peeled) -> None:
        if self.kept_bytes > MAX_KEPT or self.full.issuperset(wanted):
            self._wait(line.raw, wanted)
            return
        rarest = self._count(wanted)
        if may_be_wrapped(peeled.text):
            peeled = self._unwrapped(peeled, line)
        around = {}
        if rarest <= _WITH_CONTEXT:
            before, after = map(_readable, context(line.block, line.start, line.end))
            around = {"before": before, "after": after}
        self._line(peeled, self.line, text, around)

    def _line(self, peeled: Peeled, number: int, text: str, around: dict[str, list[str]]) -> None:
        """It is redacted later: whether there is anything to redact is asked of many at once."""
        one = _Made("line", peeled.text.strip(), number, number, _speaker(peeled), find_stamp(text), around)
        sizes = [*map(len, chain(*around.values()))] if around else ()
        if len(one.text) > MAX_TEXT or (sizes and max(sizes) > MAX_CONTEXT):
            one = _clean(one)
            self.kept_bytes += _size(one)
        else:
            self.unchecked.append(len(self.made))
            self.kept_bytes += len(one.text) + sum(sizes)
        self.made.append(one)

    def _check(self) -> None:
        lines = [self.made[at] for at in self.unchecked]
        texts = ["\n".join(chain((one.text,), *one.fields.values())) if one.fields else one.text for one in lines]
        for at, one, hides in zip(self.unchecked, lines, may_hide_something_each(texts), strict=True):
            if hides:
                self.made[at] = _clean(one)
                self.kept_bytes += _size(self.made[at]) - _size(one)
        self.unchecked.clear()

    def _unwrapped(self, peeled: Peeled, line: _Line) -> Peeled:
        sides = context(line.block, line.start, line.end)
        before, after = ([self.prefixes.peel(plain(_decoded(raw))).text for raw in side] for side in sides)
        return peeled._replace(text=unwrapped(before, peeled.text, after))

    def _count(self, numbers: list[int]) -> int:
        """How often the rarest of these literals was seen, with this line."""
        for number in numbers:
            self.seen[number] += 1
            if self.seen[number] == self.quota.first:
                self.full.add(number)
        return min([self.seen[number] for number in numbers])

    def _wait(self, raw: bytes, numbers: list[int]) -> None:
        """Over every quota: the line waits among the last ones with its rarest literal."""
        self._count(numbers)
        rarest = min(numbers, key=self.seen.__getitem__)
        waiting = self.late.setdefault(rarest, deque(maxlen=self.quota.last))
        if len(waiting) == waiting.maxlen:
            self.late_bytes -= len(waiting[0][1])
            self.dropped += self.kept_bytes > MAX_KEPT
        waiting.append((self.line, raw[: MAX_TEXT + 1]))
        self.late_bytes += len(waiting[-1][1])
        if self.late_bytes > MAX_KEPT:
            self._shed()

    def _shed(self) -> None:
        """Of all that wait, the earlier half goes."""
        waiting = sorted((line, number, raw) for number, items in self.late.items() for line, raw in items)
        self.late = {}
        self.late_bytes = 0
        for line, number, raw in reversed(waiting):
            if self.late_bytes + len(raw) > MAX_KEPT // 2:
                self.dropped += 1
            else:
                self.late.setdefault(number, deque(maxlen=self.quota.last)).appendleft((line, raw))
                self.late_bytes += len(raw)

    # -- what spans lines ------------------------------------------------------------------------------------------

    def _belongs(self, peeled: Peeled) -> bool:
        """Whether an open table or traceback of the same process takes the line."""
        if self.line >= self.look_again:
            self._give_up_silent_ones()
        who = peeled.who
        if (table := self.tables.get(who)) is not None:
            consumed = table.feed(peeled.text, self.line)
            if table.closed:
                self._close_table(who)
            if consumed:
                return True
        if (trace := self.traces.get(who)) is not None:
            consumed = trace.feed(peeled.text, self.line, peeled.by == "torch")
            if trace.closed:
                self._close_trace(who)
            return consumed
        return False

    def _see_stack(self, peeled: Peeled, line: _Line) -> None:
        """Dumps are only looked at: whatever else their lines say is read as ever."""
        who = peeled.who
        if who not in self.in_stack:
            if who not in self.stacks and len(self.stacks) >= _MAX_OPEN:
                return
            self.stacks.setdefault(who, StackReader())
            before, _ = context(line.block, line.start, line.start)
            if before and before[-1].startswith(b"Process "):  # py-spy's first line, in which nothing was found
                for ago, said in zip(range(len(before), 0, -1), before, strict=True):
                    if ago == 1 or said.startswith(b"["):
                        self.stacks[who].feed(self.prefixes.peel(plain(_decoded(said))).text, self.line - ago)
        reader = self.stacks[who]
        reader.feed(peeled.text, self.line)
        (self.in_stack.add if reader.open else self.in_stack.discard)(who)

    def _standing(self) -> None:
        for (by, rank, stream), reader in self.stacks.items():
            reader.close()
            of_one = rank is not None or (self.source.rank is not None and not by)
            for named, line, text, fields in stacks.told(reader.processes, of_one):
                whose = Peeled(rank, by, text, stream) if named is None else Peeled(named, "torch", text)
                self._event("stack", whose, line, "", **fields)

    def _open_trace(self, peeled: Peeled, line: _Line) -> None:
        if len(self.traces) >= _MAX_OPEN:
            self._close_trace(next(iter(self.traces)))
        trace = Traceback.opened_by(peeled.text, self.line, peeled.by == "torch")
        before = line_before(line.block, line.start)
        header = None if before is None else self.prefixes.peel(plain(_decoded(before)))
        if header and header.who == peeled.who:
            trace.header = header.text
            trace.announced = not self.last_raised.endswith(header.text.strip())
        self.traces[peeled.who] = trace
        if trace.closed:
            self._close_trace(peeled.who)
        elif peeled.text.strip(" :") == tracebacks.START:
            self.last_head = line.raw

    def _begin_trace(self, peeled: Peeled) -> None:
        if len(self.traces) < _MAX_OPEN and peeled.who not in self.in_stack:
            self.traces[peeled.who] = Traceback.begun_by(peeled.text, self.line, peeled.by == "torch")

    def _close_trace(self, who: Who) -> None:
        trace = self.traces.pop(who)
        trace.close()
        self.last_raised = trace.text
        if trace.is_ignored or not (trace.frames or trace.exceptions):
            return
        by, rank, stream = who
        if ranks := snippet_ranks(trace.header):
            if by in ("", "process"):
                self._quoted(trace, ranks[:_MAX_OPEN])
            return
        named = None
        if not by and self.source.rank is None:
            named = next((n for n in (trace.own_rank, trace.announced_rank, trace.child) if n is not None), None)
        if trace.of_rank is not None:
            named = trace.of_rank
        if named is not None:
            by, rank = "torch", named
        elif (
            by in ("", "process")
            and self.prefixes.rank_of_process(process := trace.process or process_in(trace.text)) is not None
        ):
            by, stream = "process", process  # Ray passes on what a worker has raised
        self._traceback(trace, Peeled(rank, by, trace.text, stream), trace.header, named=named is not None)

    def _traceback(self, trace: Traceback, peeled: Peeled, stamp_in: str = "", **more: bool) -> None:
        frames, code, types = kept_parts(trace)
        self._event(
            "traceback", peeled, trace.line, stamp_in,
            frames=frames, code=code, types=types, uncaught=trace.uncaught,
            first_line=trace.first_line, **more,
        )  # fmt: skip
        self._made_trace(self.made.pop())

    def _made_trace(self, one: _Made) -> None:
        self.traced.add(one.who[1])
        self.traces_made += 1
        (self.made if self.traces_made <= self.quota.traces else self.last_traces).append(one)

    def _quoted(self, trace: Traceback, ranks: list[int]) -> None:
        """The same traceback of each of these ranks: made once."""
        self._traceback(trace, Peeled(ranks[0], "torch", trace.text), quoted=True)
        kept = self.made if self.traces_made <= self.quota.traces else self.last_traces
        first = kept[-1]
        for rank in ranks[1:]:
            self._made_trace(first._replace(who=("torch", rank, "")))

    def _close_table(self, who: Who) -> None:
        for failure in self.tables.pop(who).rows:
            if failure.rank is not None and failure.local_rank is not None:
                self.prefixes.learn_offset("tee", who[2], failure.rank - failure.local_rank)
            self._exit(failure)

    def _exit(self, failure: elastic.Failure) -> None:
        self.exits += 1
        if self.exits > MAX_EXITS:
            return
        rank = failure.rank
        process = f" (pid {failure.pid})" if failure.pid > 0 else ""
        name = f"rank {rank}" if rank is not None else f"local rank {failure.local_rank}"
        name = "rank ?" if rank is None and failure.local_rank is None else name
        text = f"{name} ended with exit code {failure.exitcode}{process}"
        peeled = Peeled(rank, "" if rank is None else "torch", text)
        self._event(
            "exit", peeled, failure.line, failure.time,
            exitcode=failure.exitcode, pid=failure.pid,
            **({} if failure.local_rank is None else {"local_rank": failure.local_rank}),
            host=clipped(failure.host, MAX_HOST), first_observed=failure.first_observed,
            traceback=clipped(failure.traceback, MAX_TRACE), **({"by_srun": True} if failure.by_srun else {}),
        )  # fmt: skip
        if failure.traceback.startswith(tracebacks.START) and rank not in self.traced:
            self._recorded(failure)

    def _recorded(self, failure: elastic.Failure) -> None:
        """With `@record` the table quotes the traceback; it counts where the rank itself was not heard."""
        first, *lines = failure.traceback.split("\n")
        trace = Traceback.opened_by(first, failure.traceback_line, by_torch=True)
        for line in lines:
            if not trace.closed:
                trace.feed(line.removeprefix("  "), failure.traceback_line, by_torch=True)
        if trace.exceptions:
            self._traceback(trace, Peeled(failure.rank, "torch", trace.text), failure.time, quoted=True)

    def _give_up_silent_ones(self) -> None:
        self.look_again = self.line + 1_000
        for who in [who for who, trace in self.traces.items() if self.line - trace.last_line > _SILENCE]:
            self._close_trace(who)
        for who in [who for who, table in self.tables.items() if self.line - table.last_line > _SILENCE]:
            self._end_table(who)

    def _end_table(self, who: Who) -> None:
        self.tables[who].close()
        self._close_table(who)

    # -- making events ---------------------------------------------------------------------------------------------

    def _event(self, kind: str, peeled: Peeled, line: int, stamp_in: str, **fields: Any) -> None:
        text = clipped(peeled.text.strip(), MAX_TRACE if kind == "traceback" else MAX_TEXT)
        self.made.append(_Made(kind, text, line, line, _speaker(peeled), find_stamp(stamp_in), fields))

    # -- the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> LogRead:
        for who in tuple(self.traces):
            self._close_trace(who)
        for who in tuple(self.tables):
            self._end_table(who)
        for line, raw in (item for waiting in self.late.values() for item in waiting):
            text = _decoded(raw, MAX_TEXT)
            self._line(self.prefixes.peel(plain(text)), line, text, {})
        self._check()
        self.made += self.last_traces
        self._standing()
        self._seen_by_driver()
        self._last_activity()
        self._metrics()
        return self._placed()

    def _seen_by_driver(self) -> None:
        """What nvidia-smi showed of GPUs and processes; whoever's prefix stands before it, it is about a whole node."""
        for kind, number, text, fields in self.smi.found():
            clean = {
                name: clipped(value, MAX_HOST) if isinstance(value, str) else value for name, value in fields.items()
            }
            self._event(kind, Peeled(None, "", text), number, text, **clean)

    def _last_activity(self) -> None:
        """From the tail: each rank's last line, and its last line that shows training going on."""
        lines = self.tail.decode("utf-8", "replace").split("\n")
        self.ended = first_time(reversed(lines))
        if lines and not lines[-1]:
            lines.pop()
        last: dict[int | None, tuple[int, str, Peeled]] = {}
        complaints: list[tuple[int, str, Peeled]] = []
        progress: dict[int | None, list[tuple[int, str, Peeled]]] = {}
        bars: dict[int | None, dict[str, tuple[int, str, Peeled]]] = defaultdict(dict)
        again: dict[int | None, int] = {}
        shapes: dict[int | None, bytes] = {}
        dry: set[int | None] = set()
        end, closes, passed = 0, False, False
        tail = self._tail_lines(lines, self._line_count() - len(lines) + 1)
        for seen, item in enumerate(reversed(tail)):
            peeled = item[2]
            rank = self.prefixes.whose(_speaker(peeled), None)
            last.setdefault(rank, item)
            end = end or (item[0] if ended(peeled.text) else 0)
            passed = passed or tested(peeled.text)
            closes = closes or (not progress and seen < _LAST_LINES and closing(peeled.text))
            if rank not in progress and out_of_data(peeled.text):
                dry.add(rank)
            alike = shape(peeled.text)
            again[rank] = again.get(rank, 0) + (shapes.setdefault(rank, alike) == alike)
            if len(complaints) < _COMPLAINTS and complains(peeled.text):
                complaints.append(item)
            nameless = rank is None and self.source.rank is None
            if (nameless or len(progress.get(rank, ())) < _PROGRESS) and shows_progress(peeled.text):
                named = rank_named(peeled.text) if nameless else None
                progress.setdefault(rank if named is None else named, []).append(item)
            elif drawn := bar(peeled.text):
                bars[rank][drawn] = item
        for drawn_by in bars.values():
            number, raw, peeled = max(drawn_by.values())
            at = sorted(line for line, _, _ in drawn_by.values())[-_PROGRESS:]
            self._event("bars", peeled, number, raw, at=at, prefixed=peeled.prefixed)
        for rank, found in progress.items():
            number, raw, peeled = found[0]
            prefixed = peeled.prefixed
            whose = peeled if prefixed or rank is None else Peeled(rank, "said", peeled.text)
            self._event(
                "progress", whose, number, raw,
                at=[n for n, _, _ in found[:_PROGRESS]][::-1], finished=finished(peeled.text), prefixed=prefixed,
                **({"ended": end} if end else {}), **({"closes": True} if closes else {}),
                **({"tested": True} if passed else {}),
                **({} if any(steps(one.text) for _, _, one in found) else {"stepless": True}),
            )  # fmt: skip
        for rank, (number, raw, peeled) in last.items():
            named = rank_named(peeled.text) if rank is None and self.source.rank is None else None
            self._event(
                "last", peeled, number, raw, again=again[rank], **({} if named is None else {"said_by": named}),
                **({"well": True} if left_well(peeled.text) else {}), **({"dry": True} if rank in dry else {}),
            )  # fmt: skip
        for number, raw, peeled in complaints:
            self._event("complaint", peeled, number, raw)

    def _metrics(self) -> None:
        """One event for each series of numbers. It stands behind the last line: a series is whole only there."""
        end = self._line_count()
        self.meter.tail(self.tail, end - self.tail.rstrip(b"\n").count(b"\n"))
        for number, (peeled, at, fields) in enumerate(self.meter.found(), 1):
            self._event("metric", peeled, end + number * _EVIDENCE, peeled.text, **fields)
            self.made[-1] = self.made[-1]._replace(line=at)

    def _tail_lines(self, lines: list[str], first: int) -> list[tuple[int, str, Peeled]]:
        """Those that say something, with their numbers; of the very first perhaps only a part is left."""
        part = self.bytes > TAIL and len(lines) > 1
        last_pieces = [line.rstrip("\r").rsplit("\r", 1)[-1][:_MAX_RAW] for line in lines[part:]]
        peeled = [(number, raw, self.prefixes.peel(plain(raw))) for number, raw in enumerate(last_pieces, first + part)]
        return [item for item in peeled if item[2].text.strip()]

    def _line_count(self) -> int:
        return self.line - 1 if self.tail.endswith(b"\n") or not self.tail else self.line

    def _events(self, of_file: int | None) -> list[Event]:
        self.restarts.lines = self._line_count()
        self.restarts.progress = max((one.line for one in self.made if one.kind == "progress"), default=0)
        whose: dict[Who, tuple[int | None, str | None]] = {}
        for who in {one.who for one in self.made}:
            rank = self.prefixes.whose(who, of_file)
            host = self.prefixes.host_of(who, rank) or self.source.host
            whose[who] = rank, redact(host) if host else None
        return [
            self._event_of(one, *whose[one.who])
            for one in self.made
            if one.kind != "traceback" or not self.prefixes.is_helper(one.who)
        ]

    def _event_of(self, one: _Made, rank: int | None, host: str | None) -> Event:
        kind, text, seq, line, (by, _, stream), stamp, fields = one
        attempt = self.source.attempt + self.restarts.attempt(seq, stream if by == "process" else "")
        time = (stamp.utc_ns, stamp.uncertainty_ns, stamp.text) if stamp else (None, 0, "")
        return Event(self.source.id, seq, kind, text, line, rank, host, attempt, *time, fields)

    def _where(self) -> list[Fact]:
        """Which rank was which process on which host, as launchers and NCCL have said."""
        hosts = [("host", rank, redact(host)) for rank, host in sorted(self.prefixes.hosts.items())]
        pids = [("pid", rank, pid) for rank, pid in sorted(self.prefixes.pids.items())]
        return [
            Fact(name, value, self.source.id, None, rank, self.source.host) for name, rank, value in (*hosts, *pids)
        ]

    def _placed(self) -> LogRead:
        """Only now it is known whose lines the prefixes and the path meant."""
        self.prefixes.settle()
        rank = self.prefixes.rank_of_file(self.source.rank)
        events = self._events(rank)
        if self.source.rank is None:
            events = _with_rank_of_end(_with_local_ranks(events, self.prefixes))
        source = replace(self.source, rank=rank, lines=self._line_count(), bytes=self.bytes)
        skipped = []
        if self.cut_lines:
            why = f"{self.cut_lines} line(s) longer than {MAX_LINE >> 20} MiB: only their beginning was read"
            skipped.append(Skipped(self.source.id, why))
        if self.dropped:
            why = f"{self.dropped} of its matching lines between the first and the last were left out: too much text"
            skipped.append(Skipped(self.source.id, why))
        if self.smi.cut:
            skipped.append(Skipped(self.source.id, f"of what nvidia-smi wrote only {smi.MOST_ROWS:,} lines were read"))
        if self.exits > MAX_EXITS:
            why = f"of the processes that ended only the first {MAX_EXITS:,} are told"
            skipped.append(Skipped(self.source.id, why))
        facts = [*(replace(fact, rank=rank) for fact in self.facts), *self.roster, *self._where()]
        sure = len(self.prefixes.torch_ranks) == 1
        facts += [Fact("member", member, self.source.id, None, member) for member in sorted(self.stated)[:MAX_EXITS]]
        stated = next(iter(self.stated)) if len(self.stated) == 1 and not self.prefixes.ranks else None
        events.sort(key=lambda event: event.seq)
        return LogRead(
            source, events, skipped, facts, sure, stated, self.prefixes.on_a_node, self.began, self.ended or self.began
        )


def _speaker(peeled: Peeled) -> Who:
    """Also where the line itself names the rank: `Peeled.who` leaves that out."""
    return peeled.by, peeled.rank, peeled.stream


def _with_local_ranks(events: list[Event], prefixes: Prefixes) -> list[Event]:
    """An agent's line names the local rank only; on a single node it is the job's, too."""
    exits = [event for event in events if event.kind == "exit"]
    nameless = any(event.rank is None for event in exits)
    if not nameless or any(event.rank not in (None, event.fields.get("local_rank")) for event in exits):
        return events
    if not prefixes.on_one_node:
        return events
    return [replace(e, rank=e.fields.get("local_rank")) if e.kind == "exit" and e.rank is None else e for e in events]


def _with_rank_of_end(events: list[Event]) -> list[Event]:
    """One traceback that names nobody, and one rank of several that ended with an error code unheard: it is his."""
    attempts: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind in ("traceback", "exit") or "closing signal" in event.text:
            attempts[event.attempt].append(event)
    for own in attempts.values():
        raised = [event for event in own if event.kind == "traceback" and not _of_launcher(event)]
        nameless = [event for event in raised if event.rank is None]
        exits = {event.rank: event for event in own if event.kind == "exit" and event.rank is not None}
        ended = _earliest([event for event in exits.values() if 0 < event.fields["exitcode"] < 128])
        others = len(exits) > 1 or any(event.kind == "line" for event in own)
        if others and len(nameless) == len(ended) == 1 and all(e.rank != ended[0].rank for e in raised):
            host = ended[0].host or ended[0].fields["host"] or None
            at = next(at for at, event in enumerate(events) if event is nameless[0])
            events[at] = replace(nameless[0], rank=ended[0].rank, host=host)
    return events


def _earliest(ends: list[Event]) -> list[Event]:
    """The one that ended well before all others, where launchers tell the time."""
    times = sorted(event.utc_ns for event in ends if event.utc_ns is not None)
    if len(ends) < 2 or len(times) < len(ends) or times[1] - times[0] < _WELL_BEFORE:
        return ends
    return [event for event in ends if event.utc_ns == times[0]]


def kept_parts(trace: Traceback) -> tuple[list[str], list[str], list[str]]:
    """Frames, code and types of a traceback, clean and in bounds."""
    parts = (trace.frames, 750), (trace.code, MAX_CONTEXT), (trace.types[-tracebacks.MAX_FRAMES :], 750)
    frames, code, types = (clipped_lines(lines, most) for lines, most in parts)
    return frames[-tracebacks.MAX_FRAMES :], code[-3:], types[-tracebacks.MAX_FRAMES :]


def _of_launcher(event: Event) -> bool:
    return any(name.endswith(("ChildFailedError", "SignalException")) for name in event.fields.get("types", ()))


def _head_lines(head: bytes) -> list[str]:
    """Raises BinaryInput when it is no text. The last line is left out where only a part of it was read."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BinaryInput("UTF-16 text; convert it with iconv -f UTF-16 -t UTF-8")
    odd = len(head) - len(head.translate(None, _ODD))
    if odd > _BINARY_SHARE * len(head):
        raise BinaryInput("binary file")
    lines = head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").split("\n")
    return lines[:-1] if len(head) == HEAD and len(lines) > 1 else lines


def _decoded(raw: bytes, most: int = _MAX_RAW) -> str:
    text = raw[:most].decode("utf-8", "replace")
    if len(raw) > most:
        text = text.rpartition(" ")[0] or text  # half a word might be half a secret, and not be known as one
    return text


def _readable(lines: list[bytes]) -> list[str]:
    if not lines:
        return []
    text = b"\n".join(lines).decode("utf-8", "replace")
    if "\r" in text or "\x1b" in text:
        text = "\n".join(plain(line.rstrip("\r").rsplit("\r", 1)[-1]) for line in text.split("\n"))
    return text.split("\n")


def _size(line: _Made) -> int:
    return len(line.text) + sum(map(len, chain(*line.fields.values())))


def _clean(line: _Made) -> _Made:
    """Redacted and cut, with what stands around it."""
    around = {side: clipped_lines(lines, MAX_CONTEXT) for side, lines in line.fields.items()}
    return line._replace(text=clipped(line.text, MAX_TEXT), fields=around)

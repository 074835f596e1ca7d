"""One text log → Events: the lines that matter, tracebacks, torchrun's table, and each rank's last activity.

Bytes are read once, in big blocks. The prefilter says where to look; between its hits nothing is decoded.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, BinaryIO, NamedTuple

from paramedic.clocks import find_stamp, first_time, first_written
from paramedic.collect import elastic, smi, stacks, tracebacks
from paramedic.collect.activity import only_settings, shows_progress, steps
from paramedic.collect.blocks import (
    MAX_LINE,
    NEWLINE,
    Block,
    around,
    blocks,
    context,
    line_before,
    piece_end,
    piece_start,
)
from paramedic.collect.decoding import BinaryInput, WithoutHoles, decoded, head_lines, readable
from paramedic.collect.drafts import MAX_CONTEXT, MAX_HOST, MAX_TEXT, MAX_TRACE, Draft, clean, drafted, size, speaker
from paramedic.collect.guarded import shape
from paramedic.collect.identity import facts_in, ranks_stated
from paramedic.collect.layouts import LITERALS as WHO_LITERALS
from paramedic.collect.layouts import Peeled, Prefixes, Who, glued, may_be_wrapped, plain, unwrapped
from paramedic.collect.metrics import Meter
from paramedic.collect.raised import SAME, Raised
from paramedic.collect.rosters import processes_on_a_node, roster
from paramedic.collect.speakers import events_of
from paramedic.collect.stacks import StackReader
from paramedic.collect.stacks_in_logs import Stacks
from paramedic.collect.starts import Fall, FirstLines, Prompts
from paramedic.collect.system import looked
from paramedic.collect.tail import TAIL, last_activity
from paramedic.model import Event, Fact, Skipped, Source
from paramedic.prefilter import Prefilter
from paramedic.redact import clipped, may_hide_something_each, redact
from paramedic.regex import regex

MAX_EXITS = 16_384
"""Of one source. One line of srun may name thousands of tasks."""
MAX_KEPT = 8 << 20
"""Of the text of one source's lines: beyond it only the last ones are kept, as much again at most."""
HEAD = 64 << 10
_KILLED = "Killed"
"""A shell's word of the program that it had started."""
_OF_PEERS = regex(r"NCCL|gloo|c10d|[Ss]tore\b|[Pp]eer|[Cc]onnection|[Ss]ocket|[Tt]imed? ?out|Broken pipe|terminated")
LITERALS = (*tracebacks.LITERALS, *elastic.LITERALS, *stacks.LITERALS, *smi.LITERALS, *WHO_LITERALS)

_SILENCE = 20_000  # lines after which a traceback or a table that was never finished is given up
_EVIDENCE = 4  # places that one series may need for the lines that show it
_GLANCES, _GLANCE, _GLANCES_APART = 2, 400, 64 << 10  # so many must show it; of a line so much; so far apart
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
    written: tuple[float, float] | None = None
    """The same by clocks as they are written, whose year may be missing."""


def read_log(stream: BinaryIO, source: Source, prefilter: Prefilter) -> LogRead:
    """Raises BinaryInput when the head is no text; everything else is survived and said in `skipped`."""
    whole = WithoutHoles(stream)
    head = whole.read(HEAD)
    if not head and whole.left_out:
        raise BinaryInput("binary file")
    scan = _Scan(source, prefilter, head)
    for block in blocks(head, whole):
        scan.block(block)
    return scan.finish()


class _Line(NamedTuple):
    """A line, or a piece of it between carriage returns, where it stands in its block."""

    raw: bytes
    numbers: list[int]
    block: Block
    start: int
    end: int


class _Scan:
    def __init__(self, source: Source, prefilter: Prefilter, head: bytes) -> None:
        self.source = source
        self.prefilter = prefilter
        self.quota = Quota.of(source)
        self.made: list[Draft] = []
        self.unchecked: list[int] = []  # of those, the lines that may still hide something
        self.restarts = elastic.Restarts()
        self.line = 1
        self.bytes = 0
        self.tail = b""
        self.cut_lines = 0
        self.tables: dict[Who, elastic.FailureTable] = {}
        self.look_again = 0
        self.seen: dict[int, int] = defaultdict(int)
        self.full: set[int] = set()  # literals whose quota is used up
        self.late: dict[int, deque[tuple[int, bytes]]] = {}
        self.late_bytes = 0
        self.kept_bytes = 0
        self.dropped = 0
        self.exits = 0
        self.own = prefilter.numbers(LITERALS)
        self.smi = smi.Smi()
        self.of_smi = prefilter.numbers(smi.LITERALS)
        self.last_head = b""
        """The line right above, where a traceback's head is all that stands there."""
        self.section: int | None = None
        lines = head_lines(head, len(head) == HEAD)
        self.prefixes = Prefixes.of(lines[:400])
        self.raised = Raised(source.rank, self.prefixes, self.quota.traces, self.made)
        self.traces = self.raised.open
        self.stacks = Stacks(self.prefixes)
        self.in_stack = self.stacks.open
        for line in lines:
            self.prefixes.peel(plain(line))
        self.facts = list(facts_in(lines, source))
        self.roster = [*roster(lines, source), *looked(lines, source)]
        self.prefixes.on_a_node = processes_on_a_node(lines)
        self.stated = ranks_stated(lines)
        self.began = first_time(lines)
        self.opened = first_written(lines)
        self.ended: int | None = None
        self.closed: float | None = None
        self.first_lines = FirstLines.of(lines, source.rank is not None)
        self.prompts = Prompts.of(lines)
        self.meter = Meter(source.rank is not None, self.prefixes.peel)
        self.glimpsed = 0

    # -- reading ---------------------------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        self._glance(block.lines)
        self.meter.block(block.lines, self.line, block.last)
        self.first_lines.block(block, self.line)
        self.prompts.block(block, self.line)
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

    def _glance(self, lines: bytes) -> None:
        """At a line now and then, until it is seen that the job trains: its end may be too full of other things."""
        for at in range(0, len(lines), _GLANCES_APART):
            if self.glimpsed >= _GLANCES:
                return
            start = max(lines.rfind(b"\n", 0, at), lines.rfind(b"\r", 0, at)) + 1
            line = next(iter(lines[start : start + _GLANCE].splitlines()), b"")
            text = self.prefixes.peel(plain(line.decode("utf-8", "replace"))).text
            self.glimpsed += steps(text) and shows_progress(text) and not only_settings([text])

    def _take(self, line: _Line) -> None:
        """One line: give it to what is open, open something, or keep it."""
        if line.raw == self.last_head != b"":
            return  # the same head once more: nothing stood below the first
        self.last_head = b""
        if self.smi.open or not self.of_smi.isdisjoint(line.numbers):
            self.smi.feed(plain(decoded(line.raw, smi.MAX_LINE)), self.line)
        under_way = self.traces or self.tables or self.in_stack
        if not under_way and not line.numbers:
            return
        if not under_way and self.full.issuperset(line.numbers):
            self._wait(line.raw, line.numbers)
            return
        text = decoded(line.raw)
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
            self.stacks.see(peeled, self.line, line.block, line.start)
        if not self.own.isdisjoint(line.numbers):
            self._note_bounds(peeled, line)
        if ((self.traces or self.tables) and self._belongs(peeled)) or not line.numbers or peeled.by == "echo":
            return
        if "\x1b" not in text and self.own.isdisjoint(line.numbers):
            self._keep(line, line.numbers, text, peeled)
            return
        self._ends(elastic.other_ends(peeled.text, self.line), peeled)
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

    def _ends(self, failures: Sequence[elastic.Failure], peeled: Peeled) -> None:
        for failure in failures if self.exits <= MAX_EXITS else ():
            if failure.rank is None and failure.local_rank is not None:
                failure.rank = self.prefixes.rank_on_node(failure.local_rank, peeled.stream)
            self._exit(failure)

    def _note_bounds(self, peeled: Peeled, line: _Line) -> None:
        """What tells of attempts; and, as the end of a traceback, who ended."""
        self._ends(elastic.spawned_end(peeled.text, self.line), peeled)
        self.restarts.note(peeled.text, self.line, peeled.who)
        if elastic.is_cancelled(peeled.text):
            self.restarts.note_around(peeled.text, self.line, *around(line.block, line.start, line.end))

    def _keep(self, line: _Line, wanted: list[int], text: str, peeled: Peeled) -> None:
        if self.kept_bytes > MAX_KEPT or self.full.issuperset(wanted):
            self._wait(line.raw, wanted)
            return
        rarest = self._count(wanted)
        if may_be_wrapped(peeled.text):
            peeled = self._unwrapped(peeled, line)
        around = {}
        if rarest <= _WITH_CONTEXT:
            before, after = map(readable, context(line.block, line.start, line.end))
            around = {"before": before, "after": after}
        self._line(peeled, self.line, text, around)

    def _line(self, peeled: Peeled, number: int, text: str, around: dict[str, list[str]]) -> None:
        """It is redacted later: whether there is anything to redact is asked of many at once."""
        one = Draft("line", peeled.text.strip(), number, number, speaker(peeled), find_stamp(text), around)
        sizes = [*map(len, chain(*around.values()))] if around else ()
        if len(one.text) > MAX_TEXT or (sizes and max(sizes) > MAX_CONTEXT):
            one = clean(one)
            self.kept_bytes += size(one)
        else:
            self.unchecked.append(len(self.made))
            self.kept_bytes += len(one.text) + sum(sizes)
        self.made.append(one)

    def _check(self) -> None:
        lines = [self.made[at] for at in self.unchecked]
        texts = ["\n".join(chain((one.text,), *one.fields.values())) if one.fields else one.text for one in lines]
        for at, one, hides in zip(self.unchecked, lines, may_hide_something_each(texts), strict=True):
            if hides:
                self.made[at] = clean(one)
                self.kept_bytes += size(self.made[at]) - size(one)
        self.unchecked.clear()

    def _unwrapped(self, peeled: Peeled, line: _Line) -> Peeled:
        sides = context(line.block, line.start, line.end)
        before, after = ([self.prefixes.peel(plain(decoded(raw))).text for raw in side] for side in sides)
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
                self.raised.close(who)
            return consumed
        return False

    def _open_trace(self, peeled: Peeled, line: _Line) -> None:
        is_open = self.raised.opens(peeled, self.line, line_before(line.block, line.start))
        if is_open and peeled.text.strip(" :") == tracebacks.START:
            self.last_head = line.raw

    def _begin_trace(self, peeled: Peeled) -> None:
        if peeled.who not in self.in_stack:
            self.raised.begins(peeled, self.line)

    def _close_table(self, who: Who) -> None:
        for failure in self.tables.pop(who).rows:
            if failure.rank is not None and failure.local_rank is not None:
                self.prefixes.of_launcher = True
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
        if failure.traceback.startswith(tracebacks.START) and rank not in self.raised.by:
            self.raised.quoted_by(failure)

    def _give_up_silent_ones(self) -> None:
        self.look_again = self.line + 1_000
        for who in [who for who, trace in self.traces.items() if self.line - trace.last_line > _SILENCE]:
            self.raised.close(who)
        for who in [who for who, table in self.tables.items() if self.line - table.last_line > _SILENCE]:
            self._end_table(who)

    def _end_table(self, who: Who) -> None:
        self.tables[who].close()
        self._close_table(who)

    def _event(self, kind: str, peeled: Peeled, line: int, stamp_in: str, **fields: Any) -> None:
        self.made.append(drafted(kind, peeled, line, stamp_in, **fields))

    # -- the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> LogRead:
        for who in tuple(self.traces):
            self.raised.close(who)
        for who in tuple(self.tables):
            self._end_table(who)
        for line, raw in (item for waiting in self.late.values() for item in waiting):
            text = decoded(raw, MAX_TEXT)
            self._line(self.prefixes.peel(plain(text)), line, text, {})
        self._check()
        self.made += self.raised.last
        for whose, number, fields in self.stacks.told(self.source.rank):
            self._event("stack", whose, number, "", **fields)
        self._seen_by_driver()
        lines = self.tail.decode("utf-8", "replace").split("\n")
        self.ended = first_time(reversed(lines))
        self.closed = first_written(reversed(lines))
        told = last_activity(lines, self._line_count(), self.bytes > TAIL, self.prefixes, self.source.rank)
        self.made += [one for one in told if one.kind != "complaint" or one.text[:SAME] not in self.raised.ignored]
        self._metrics()
        return self._placed()

    def _seen_by_driver(self) -> None:
        """What nvidia-smi showed of GPUs and processes; whoever's prefix stands before it, it is about a whole node."""
        for kind, number, text, fields in self.smi.found():
            short = {
                name: clipped(value, MAX_HOST) if isinstance(value, str) else value for name, value in fields.items()
            }
            self._event(kind, Peeled(None, "", text), number, text, **short)

    def _metrics(self) -> None:
        """One event for each series of numbers. It stands behind the last line: a series is whole only there."""
        end = self._line_count()
        self.meter.tail(self.tail, end - self.tail.rstrip(b"\n").count(b"\n"))
        for number, (peeled, at, fields) in enumerate(self.meter.found(), 1):
            self._event("metric", peeled, end + number * _EVIDENCE, peeled.text, **fields)
            self.made[-1] = self.made[-1]._replace(line=at)

    def _line_count(self) -> int:
        return self.line - 1 if self.tail.endswith(b"\n") or not self.tail else self.line

    def _where(self) -> list[Fact]:
        """Which rank was which process on which host, as launchers and NCCL have said."""
        hosts = [("host", rank, redact(host)) for rank, host in sorted(self.prefixes.hosts.items())]
        pids = [("pid", rank, pid) for rank, pid in sorted(self.prefixes.pids.items())]
        return [
            Fact(name, value, self.source.id, None, rank, self.source.host) for name, rank, value in (*hosts, *pids)
        ]

    def _falls(self, rank: int | None) -> None:
        """Where a process fell by itself, of a log in which one writes. In others whose rank nobody tells there may be
        several, and who has lost a peer need not be the one that fell before him."""
        if rank is None and self.prefixes.ranks:
            return
        for one in self.made:
            frames = one.fields.get("frames", ())
            fell = one.kind == "traceback" and tracebacks.ends_all(frames, tracebacks.OF_PROGRAM)
            if one.kind == "line" and one.text.endswith(_KILLED):
                self.restarts.falls.append(Fall(one.line))
            if fell and (rank is not None or not _OF_PEERS.search(one.text)):
                self.restarts.falls.append(Fall(one.line, shape(one.text[:200]), frames[0].rpartition(":")[0]))
            if one.kind in ("progress", "bars"):
                self.restarts.shown += one.fields.get("at", ())
        self.restarts.of_rank = rank is not None
        first = min((fall.line for fall in self.restarts.fallen), default=0)
        self.restarts.alone = self.first_lines.of_one(first)

    def _placed(self) -> LogRead:
        """Only now it is known whose lines the prefixes and the path meant."""
        self.prefixes.settle()
        rank = self.prefixes.rank_of_file(self.source.rank)
        self.restarts.lines = self._line_count()
        self.restarts.again = [*self.first_lines.again(), *self.prompts.again()]
        self._falls(rank)
        self.restarts.progress = max((one.line for one in self.made if one.kind == "progress"), default=0)
        events = events_of(self.made, self.source, self.prefixes, self.restarts, rank)
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
        names = ("begun anew", "appended") if self.restarts.appended else ("begun anew",)
        facts += [Fact(name, number, self.source.id) for name in names for number in self.restarts.anew()]
        if rank is not None:
            facts += [Fact("head again", one.clock, self.source.id, one.line) for one in self.first_lines.once_more()]
        if self.prefixes.numbered:
            facts.append(Fact("numbered lines", True, self.source.id))
        if self.glimpsed >= _GLANCES:
            facts.append(Fact("trained", True, self.source.id))
        if self.restarts.silence:
            facts.append(Fact("silent", round(self.restarts.silence), self.source.id))
        facts += [Fact("member", member, self.source.id, None, member) for member in sorted(self.stated)[:MAX_EXITS]]
        stated = next(iter(self.stated)) if len(self.stated) == 1 and not self.prefixes.ranks else None
        events.sort(key=lambda event: event.seq)
        ended = self.ended or self.began
        written = None if self.opened is None else (self.opened, self.opened if self.closed is None else self.closed)
        return LogRead(
            source, events, skipped, facts, sure, stated, self.prefixes.on_a_node, self.began, ended, written
        )

"""One text log → Events: the lines that matter, tracebacks, torchrun's table, and each rank's last activity.

Bytes are read once, in big blocks. The prefilter says where to look; between its hits nothing is decoded.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from paramedic.collect import elastic, tracebacks
from paramedic.collect.clocks import find_stamp
from paramedic.collect.identity import facts_in
from paramedic.collect.inputs import BROKEN, reason
from paramedic.collect.layouts import Prefixes, plain
from paramedic.collect.tracebacks import Traceback
from paramedic.model import Event, Fact, Skipped, Source
from paramedic.prefilter import Prefilter
from paramedic.redact import redact

BLOCK = 4 << 20
MAX_LINE = 1 << 20
MAX_TEXT = 4_000
HEAD = 64 << 10
TAIL = 64 << 10
CONTEXT = 3
LITERALS = (*tracebacks.LITERALS, *elastic.LITERALS)

_BINARY_SHARE = 0.05
_MAX_TRACES = 200  # of one source: so many first ones, and so many last ones
_NO_PROGRESS = re.compile(r"error|fail|exception|abort|killed|traceback|timed? ?out|fatal", re.I)
_PROGRESS = re.compile(
    r"\b(?:step|iter|iteration|epoch|batch|global_step)s?\b[^\w\n]{0,6}\d|\bloss\b[^\w\n]{0,6}-?\d|it/s\b|\b\d+%\|"
    r"|\b(?:training|run|job) (?:is )?(?:finished|complete|completed|done)\b",
    re.I,
)


@dataclass(slots=True)
class Quota:
    """How many lines with one literal are kept from one source: the first ones and the last ones."""

    first: int
    last: int

    @classmethod
    def of(cls, source: Source) -> Quota:
        return cls(8, 8) if source.rank is not None else cls(400, 100)


@dataclass(slots=True)
class LogRead:
    source: Source
    events: list[Event] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)


class BinaryInput(Exception):
    """The stream is no text."""


def read_log(stream: BinaryIO, source: Source, prefilter: Prefilter) -> LogRead:
    """Raises BinaryInput when the head is no text; everything else is survived and said in `skipped`."""
    scan = _Scan(source, prefilter)
    try:
        for block, cut in _blocks(stream):
            if not scan.bytes:
                scan.look_at_head(block[:HEAD])
            scan.block(block)
            scan.cut_lines += cut
    except BROKEN as error:
        why = f"damaged or truncated after line {scan.lines}: {reason(error)}; what came before was used"
        scan.skipped.append(Skipped(source.id, why))
    return scan.finish()


def _blocks(stream: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Blocks that end at a line's end. A line over MAX_LINE is cut there and the rest of it dropped (True)."""
    carry = b""
    dropping = False
    while chunk := stream.read(BLOCK):
        if dropping:
            end = chunk.find(b"\n")
            if end < 0:
                continue
            chunk, dropping = chunk[end + 1 :], False
        data = carry + chunk
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        if len(rest) > MAX_LINE:
            yield data[: end + MAX_LINE] + b"\n", True
            carry, dropping = b"", True
        else:
            if end:
                yield data[:end], False
            carry = rest
    if carry:
        yield carry, False


class _Scan:
    def __init__(self, source: Source, prefilter: Prefilter) -> None:
        self.source = source
        self.prefilter = prefilter
        self.quota = Quota.of(source)
        self.prefixes = Prefixes()
        self.events: list[Event] = []
        self.skipped: list[Skipped] = []
        self.facts: list[Fact] = []
        self.line = 1  # number of the line at `at`
        self.lines = 0
        self.bytes = 0
        self.open: dict[int | None, Traceback] = {}
        self.table: elastic.FailureTable | None = None
        self.seen: dict[int, int] = {}
        self.late: dict[int, deque[tuple[int, bytes]]] = {}
        self.tail = b""
        self.torch_rank: int | None = None
        self.cut_lines = 0
        self.traces = 0
        self.last_traces: deque[Event] = deque(maxlen=_MAX_TRACES)
        self.exempt = {n for n, literal in enumerate(prefilter.literals) if literal in LITERALS}

    # -- reading ---------------------------------------------------------------------------------------------------

    def look_at_head(self, head: bytes) -> None:
        if head.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise BinaryInput("UTF-16 text; convert it with iconv -f UTF-16 -t UTF-8")
        odd = sum(head.count(bytes([c])) for c in range(32) if c not in (7, 8, 9, 10, 12, 13, 27))
        if odd > _BINARY_SHARE * len(head):
            raise BinaryInput("binary file")
        lines = head.decode("utf-8", "replace").split("\n")
        self.prefixes = Prefixes.of(lines[:400])
        self.facts = list(facts_in(lines, self.source))

    def block(self, block: bytes) -> None:
        hits = self.prefilter.scan(block)
        at, next_hit = 0, 0
        while True:
            if not self.open and self.table is None:  # nothing under way: jump to the next hit's line
                while next_hit < len(hits) and hits[next_hit][0] <= at:
                    next_hit += 1
                if next_hit == len(hits):
                    break
                start = block.rfind(b"\n", 0, hits[next_hit][0] - 1) + 1
                if start > at:
                    self.line += block.count(b"\n", at, start)
                    at = start
            elif at >= len(block):
                break
            end = block.find(b"\n", at)
            end = len(block) if end < 0 else end
            numbers = []
            while next_hit < len(hits) and hits[next_hit][0] <= end:
                if hits[next_hit][0] > at:
                    numbers.append(hits[next_hit][1])
                next_hit += 1
            self.take(block, at, end, numbers)
            self.line += 1
            at = end + 1
        newlines = block.count(b"\n", min(at, len(block)))
        self.line += newlines
        self.lines += block.count(b"\n") + (not block.endswith(b"\n"))
        self.bytes += len(block)
        self.tail = (self.tail + block[-TAIL:])[-TAIL:]

    def take(self, block: bytes, start: int, end: int, numbers: list[int]) -> None:
        """One line: give it to what is open, open something, or keep it."""
        under_way = bool(self.open) or self.table is not None
        if not under_way and self._over_quota(numbers, block[start : min(end, start + MAX_TEXT)]):
            return
        raw = block[start : min(end, start + 4 * MAX_TEXT)].decode("utf-8", "replace")
        for part in raw.rstrip("\r").split("\r") if "\r" in raw else (raw,):
            self._line(part, numbers, (block, start, end))

    def _over_quota(self, numbers: list[int], raw: bytes) -> bool:
        """Counts the line for each literal in it; over all quotas it waits among the last ones."""
        if not numbers:
            return True
        over = True
        for number in numbers:
            count = self.seen[number] = self.seen.get(number, 0) + 1
            if count <= self.quota.first or number in self.exempt:
                over = False
        if over:
            rarest = min(numbers, key=lambda n: self.seen[n])
            self.late.setdefault(rarest, deque(maxlen=self.quota.last)).append((self.line, raw))
        return over

    def _line(self, raw: str, numbers: list[int], where: tuple[bytes, int, int]) -> None:
        rank, text, by_torch = self.prefixes.peel(plain(raw))
        if by_torch:
            self.torch_rank = rank
        if self.table is not None:
            self.table.feed(text, self.line)
            if self.table.closed:
                self._close_table()
            return
        if (trace := self.open.get(rank)) is not None:
            consumed = trace.feed(text, self.line, by_torch)
            if trace.closed:
                self._close_trace(rank)
            if consumed:
                return
        if not numbers:
            return
        if tracebacks.LITERALS[0] in text:
            self.open[rank] = Traceback(self.line, uncaught=by_torch)
        elif text.strip().startswith(elastic.TABLE_STARTS):
            self.table = elastic.FailureTable()
            self.table.feed(text, self.line)
        elif (failure := elastic.agent_line(text, self.line)) is not None:
            self._exit(failure)
        else:
            self._keep(raw, rank, text, *_context(*where))

    # -- making events ---------------------------------------------------------------------------------------------

    def _event(self, kind: str, text: str, line: int, rank: int | None, stamp_in: str, **fields: Any) -> Event:
        stamp = find_stamp(stamp_in)
        event = Event(
            source=self.source.id,
            seq=line,
            kind=kind,
            text=redact(text),
            line=line,
            rank=self.source.rank if rank is None else rank,
            host=self.source.host,
            attempt=self.source.attempt,
            utc_ns=stamp.utc_ns if stamp else None,
            uncertainty_ns=stamp.uncertainty_ns if stamp else 0,
            time_text=stamp.text if stamp else "",
            fields=fields,
        )
        self.events.append(event)
        return event

    def _keep(self, raw: str, rank: int | None, text: str, before: list[str], after: list[str]) -> None:
        text = text.strip()[:MAX_TEXT]
        self._event("line", text, self.line, rank, raw, before=before, after=after)

    def _close_trace(self, rank: int | None) -> None:
        trace = self.open.pop(rank)
        if not trace.exceptions:
            return
        self._event(
            "traceback",
            trace.text,
            trace.line,
            rank,
            "",
            frames=[redact(f) for f in trace.frames],
            types=trace.types,
            uncaught=trace.uncaught,
            first_line=trace.first_line,
        )
        self.traces += 1
        if self.traces > _MAX_TRACES:
            self.last_traces.append(self.events.pop())

    def _close_table(self) -> None:
        table, self.table = self.table, None
        for failure in table.rows if table else ():
            self._exit(failure)

    def _exit(self, failure: elastic.Failure) -> None:
        rank = failure.rank
        self._event(
            "exit",
            f"rank {'?' if rank is None else rank} ended with exit code {failure.exitcode} (pid {failure.pid})",
            failure.line,
            rank,
            failure.time,
            exitcode=failure.exitcode,
            pid=failure.pid,
            local_rank=failure.local_rank,
            host=failure.host,
            first_observed=failure.first_observed,
            traceback=redact(failure.traceback),
        )

    # -- the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> LogRead:
        for rank in tuple(self.open):
            self._close_trace(rank)
        if self.table is not None:
            self.table.feed("=====", self.line)
            self._close_table()
        for waiting in self.late.values():
            for line, raw in waiting:
                whole = raw.decode("utf-8", "replace")
                rank, text, _ = self.prefixes.peel(plain(whole))
                self._event("line", text.strip()[:MAX_TEXT], line, rank, whole)
        self.events += self.last_traces
        self._last_activity()
        if self.cut_lines:
            why = f"{self.cut_lines} line(s) longer than {MAX_LINE >> 20} MiB: only their beginning was read"
            self.skipped.append(Skipped(self.source.id, why))
        return LogRead(*self._with_global_rank(), self.skipped, self.facts)

    def _last_activity(self) -> None:
        """From the tail: each rank's last line, and its last line that shows training going on."""
        lines = self.tail.decode("utf-8", "replace").split("\n")
        if lines and not lines[-1]:
            lines.pop()
        first = self.lines - len(lines) + 1
        last: dict[int | None, tuple[int, str]] = {}
        progress: dict[int | None, tuple[int, str]] = {}
        for number, raw in enumerate(lines, first):
            rank, text, _ = self.prefixes.peel(plain(raw.rstrip("\r").rsplit("\r", 1)[-1]))
            if text.strip():
                last[rank] = number, raw
                if _PROGRESS.search(text) and not _NO_PROGRESS.search(text):
                    progress[rank] = number, raw
        for kind, found in (("progress", progress), ("last", last)):
            for rank, (number, raw) in found.items():
                self._event(kind, self.prefixes.peel(plain(raw))[1].strip()[:MAX_TEXT], number, rank, raw)

    def _with_global_rank(self) -> tuple[Source, list[Event]]:
        """A torchrun folder is named after the local rank; torch's own `[rankN]:` inside it knows better."""
        source = replace(self.source, lines=self.lines, bytes=self.bytes)
        events = sorted(self.events, key=lambda e: e.seq)
        local, known = self.source.rank, self.torch_rank
        if local is None or known is None or local == known:
            return source, events
        events = [replace(e, rank=known) if e.rank == local else e for e in events]
        return replace(source, rank=known), events


def _context(block: bytes, start: int, end: int) -> tuple[list[str], list[str]]:
    """The lines before and after a kept one, as they stand in the file."""
    before = block[max(0, start - 2_000) : start].split(b"\n")[:-1][-CONTEXT:]
    after = block[end + 1 : end + 2_001].split(b"\n")[:CONTEXT]
    return [_shown(raw) for raw in before], [_shown(raw) for raw in after if raw]


def _shown(raw: bytes) -> str:
    return redact(plain(raw[:400].decode("utf-8", "replace").rstrip("\r")))

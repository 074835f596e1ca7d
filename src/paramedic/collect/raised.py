"""Tracebacks of a log: who raised each, and how many of them are kept."""

from __future__ import annotations

from collections import deque

from paramedic.collect import tracebacks
from paramedic.collect.decoding import decoded
from paramedic.collect.drafts import MAX_CONTEXT, Draft, drafted
from paramedic.collect.elastic import Failure
from paramedic.collect.layouts import Peeled, Prefixes, Who, plain, snippet_ranks
from paramedic.collect.tracebacks import Traceback, process_in
from paramedic.redact import clipped_lines

_MAX_OPEN = 4_096
SAME = 60
"""So many signs of two errors are alike: the rest may be torn."""


class Raised:
    """Those of one log: open ones by the process that raises, and what those that are over say."""

    def __init__(self, of_file: int | None, prefixes: Prefixes, most: int, made: list[Draft]) -> None:
        self.open: dict[Who, Traceback] = {}
        self.by: set[int | None] = set()
        self.last: deque[Draft] = deque(maxlen=most)
        """Beyond so many, of which the first ones are among what was made."""
        self._of_file = of_file
        self._prefixes = prefixes
        self._most = most
        self._made = made
        self._count = 0
        self._text = "\n"
        self.ignored: set[str] = set()
        """Frames and last words of what was printed and passed over: another process may have written in between."""

    def opens(self, peeled: Peeled, line: int, before: bytes | None) -> bool:
        """Whether there is more to come. `before`: the line right above."""
        if len(self.open) >= _MAX_OPEN:
            self.close(next(iter(self.open)))
        trace = Traceback.opened_by(peeled.text, line, peeled.by == "torch")
        header = None if before is None else self._prefixes.peel(plain(decoded(before)))
        if header and header.who == peeled.who:
            trace.header = header.text
            trace.announced = not self._text.endswith(header.text.strip())
        self.open[peeled.who] = trace
        if trace.closed:
            self.close(peeled.who)
        return not trace.closed

    def begins(self, peeled: Peeled, line: int) -> None:
        """With a frame: its head is not there."""
        if len(self.open) < _MAX_OPEN:
            self.open[peeled.who] = Traceback.begun_by(peeled.text, line, peeled.by == "torch")

    def close(self, who: Who) -> None:
        trace = self.open.pop(who)
        trace.close()
        self._text = trace.text
        if trace.is_ignored or not (trace.frames or trace.exceptions):
            if len(self.ignored) < _MAX_OPEN:
                self.ignored.update((*trace.frames[: tracebacks.MAX_FRAMES], trace.text[:SAME]))
            return
        if trace.headless and self.ignored.issuperset((*trace.frames, trace.text[:SAME])):
            return
        by, rank, stream = who
        if ranks := snippet_ranks(trace.header):
            if by in ("", "process"):
                self._quoted(trace, ranks[:_MAX_OPEN])
            return
        named = None
        if not by and self._of_file is None:
            named = next((n for n in (trace.own_rank, trace.announced_rank, trace.child) if n is not None), None)
        if trace.of_rank is not None:
            named = trace.of_rank
        if named is not None:
            by, rank = "torch", named
        elif (
            by in ("", "process")
            and self._prefixes.rank_of_process(process := trace.process or process_in(trace.text)) is not None
        ):
            by, stream = "process", process  # Ray passes on what a worker has raised
        self._traceback(trace, Peeled(rank, by, trace.text, stream), trace.header, named=named is not None)

    def quoted_by(self, failure: Failure) -> None:
        """With `@record` the table quotes the traceback; it counts where the rank itself was not heard."""
        first, *lines = failure.traceback.split("\n")
        trace = Traceback.opened_by(first, failure.traceback_line, by_torch=True)
        for line in lines:
            if not trace.closed:
                trace.feed(line.removeprefix("  "), failure.traceback_line, by_torch=True)
        if trace.exceptions:
            self._traceback(trace, Peeled(failure.rank, "torch", trace.text), failure.time, quoted=True)

    def _quoted(self, trace: Traceback, ranks: list[int]) -> None:
        """The same traceback of each of these ranks: made once."""
        self._traceback(trace, Peeled(ranks[0], "torch", trace.text), quoted=True)
        kept = self._made if self._count <= self._most else self.last
        first = kept[-1]
        for rank in ranks[1:]:
            self._keep(first._replace(who=("torch", rank, "")))

    def _traceback(self, trace: Traceback, peeled: Peeled, stamp_in: str = "", **more: bool) -> None:
        frames, code, types = kept_parts(trace)
        if trace.logged:
            more["logged"] = True
        self._keep(drafted(
            "traceback", peeled, trace.line, stamp_in,
            frames=frames, code=code, types=types, uncaught=trace.uncaught,
            first_line=trace.first_line, **more,
        ))  # fmt: skip

    def _keep(self, one: Draft) -> None:
        self.by.add(one.who[1])
        self._count += 1
        (self._made if self._count <= self._most else self.last).append(one)


def kept_parts(trace: Traceback) -> tuple[list[str], list[str], list[str]]:
    """Frames, code and types of a traceback, clean and in bounds."""
    parts = (trace.frames, 750), (trace.code, MAX_CONTEXT), (trace.types[-tracebacks.MAX_FRAMES :], 750)
    frames, code, types = (clipped_lines(lines, most) for lines, most in parts)
    return frames[-tracebacks.MAX_FRAMES :], code[-3:], types[-tracebacks.MAX_FRAMES :]

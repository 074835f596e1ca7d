"""A job that was begun once more in one log: a launcher's first words, or the log's own first lines, after an end."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile, islice, pairwise, takewhile

from paramedic.clocks import as_written
from paramedic.collect.activity import complains, shows_progress
from paramedic.collect.blocks import WINDOW, Block
from paramedic.collect.guarded import shape
from paramedic.regex import regex

_HEAD = 16  # lines of the top
_ANCHORS = 4
_MOST = 64  # so often no job is begun: what is found more often is said all the time
_LITERAL = regex(rb"[^\d\r\n]{8,60}")
_LETTERS = regex(rb"[A-Za-z]{3}")
_WHILE_THEY_END_S = 10
"""What srun was told to end may still be starting."""
_WHILE_IT_BEGINS_S = 60
"""So long a program may take for its first lines."""
_UNHEARD_S = 600
"""Where nothing tells when the end was: nodes of one job do not begin so long after each other."""
_PROMPT = regex(
    r"(?:\([\w.-]{1,40}\) ?)?\[?(?P<who>[\w.-]{1,40}@[\w.-]{1,80}[: ])[^\s$#]{0,120}[$#] ?(?P<command>\S.*)"
)
"""A shell's, with the next command behind it: it comes back when the command before has ended."""
_BEGINS_A_JOB = regex(
    r"(?:^|[ /=])(?:python[\d.]*|\w*run|\w*launch\w*|train\w*|deepspeed|accelerate|colossalai|mpiexec|bash|sh|make)\b"
    r"|(?:^| )\./\w|\.(?:py|sh)\b"
)
_LOOKS = regex(
    r"(?:sudo )?(?:vim?|nano|emacs|code|less|more|cat|head|tail|grep|ls|git|cp|mv|diff|sed|awk|chmod|wc|rm)\b"
)
"""A command that only looks at a script, or changes it."""
_OF_LIBRARIES = regex(
    r"(?:site|dist)-packages/|\.cc:\d|Warning\b|^\d{4}-\d\d-\d\d [\d:.,]{8,20}: [IWE] |^[IWE]\d{4} |^wandb: "
)
_TRACEBACK = "Traceback (most recent"
_SCRIPT = regex(r"[\w./-]{1,200}\.(?:py|sh)\b")


@dataclass(frozen=True, slots=True)
class Start:
    line: int
    clock: float | None
    before: float | None = None
    """What the clock showed last, as far as it is told nearby."""
    by_launcher: bool = False
    in_order: bool = False
    """Whoever says it has waited for what it had started before."""
    at_prompt: bool = False
    """And nobody need tell that it ended."""


@dataclass(frozen=True, slots=True)
class End:
    line: int
    clock: float | None
    by_launcher: bool = False
    """One that has ended all its processes before it says so."""
    whole: bool = False
    """A scheduler has ended all that there was."""


@dataclass(slots=True)
class FirstLines:
    """Looks for the lines at a log's top, two of them in their order, whatever their numbers are then."""

    pairs: list[tuple[bytes, bytes, bytes]]
    found: dict[tuple[bytes, bytes, bytes], list[Start]] = field(default_factory=dict)
    at_top: bool = True
    """Or below words of a failure, with which another start may have ended at once."""

    @classmethod
    def of(cls, head: Iterable[str], of_rank: bool = False) -> FirstLines:
        """In a log that no path gives to one rank, what libraries print on their way in says nothing of the program."""
        stripped = (line.strip() for line in islice(head, _HEAD))
        lines = [*takewhile(lambda line: not line.startswith(_TRACEBACK), stripped)]
        below = [*dropwhile(complains, lines)]
        top = takewhile(_before_all, below)
        pairs: dict[tuple[bytes, bytes, bytes], None] = {}
        for one, two in pairwise(line for line in top if line and (of_rank or not _OF_LIBRARIES.search(line))):
            literals = [part for part in _LITERAL.findall(one.encode()) if _LETTERS.search(part)]
            if literals and _LETTERS.search(shape(two)) and shape(one) != shape(two):
                pairs[max(literals, key=len), shape(one), shape(two)] = None
        return cls([*pairs][:_ANCHORS], at_top=len(below) == len(lines))

    def block(self, block: Block, first: int) -> None:
        """`first` is the number of the block's first line."""
        for pair in self.pairs:
            literal, one, two = pair
            at = block.lines.find(literal)
            while at >= 0:
                begin = block.lines.rfind(b"\n", 0, at) + 1
                after = (block.lines[begin : begin + WINDOW] + block.after)[:WINDOW].split(b"\n")
                following = next((line for line in after[1:] if line.strip()), b"")
                if _shaped(after[0]) == one and _shaped(following) == two:
                    self._note(pair, block, begin, first)
                at = block.lines.find(b"\n", at)
                at = block.lines.find(literal, at) if at >= 0 else -1
        self.pairs = [pair for pair in self.pairs if len(self.found.get(pair, ())) < _MOST]

    def _note(self, pair: tuple[bytes, bytes, bytes], block: Block, begin: int, first: int) -> None:
        known = self.found.setdefault(pair, [])
        if len(known) < _MOST:
            before = (block.before + block.lines[max(begin - WINDOW, 0) : begin])[-WINDOW:].split(b"\n")
            after = (block.lines[begin : begin + WINDOW] + block.after)[:WINDOW].split(b"\n")
            line = first + block.lines.count(b"\n", 0, begin)
            known.append(Start(line, clock_of(after), clock_of(reversed(before))))

    def again(self) -> list[Start]:
        return [start for known in self.found.values() if len(known) < _MOST and self.at_top for start in known]

    def once_more(self) -> list[Start]:
        """Where they stand again, later by the clock: one for each time."""
        told = sorted(self.again(), key=lambda start: start.line)
        last = next((start.clock for start in told if start.clock is not None), None)
        found = []
        for start in told:
            if start.clock is not None and last is not None and start.clock - last >= _WHILE_IT_BEGINS_S:
                found.append(start)
                last = start.clock
        return found

    def of_one(self, fall: int) -> list[Start]:
        """Where only one process wrote them before the first one fell: nobody else was just late."""
        known = [one for one in self.found.values() if sum(start.line < fall for start in one) == 1]
        return [start for starts in known if len(starts) < _MOST for start in starts]


def _before_all(line: str) -> bool:
    """Where a log begins in the midst of it, its lines recur, too."""
    progress = shows_progress(line) and not _SETTINGS.search(line)
    return not (complains(line) or progress or line.startswith("[rank"))


_SETTINGS = regex(r"\{[^{}]{0,80}\{")
"""One printed within another: many of them are named as what progresses."""


@dataclass(slots=True)
class Prompts:
    """Looks for the prompt at which a log begins, where the same program is started there once more."""

    literal: bytes = b""
    programs: frozenset[str] = frozenset()
    found: list[Start] = field(default_factory=list)

    @classmethod
    def of(cls, head: Iterable[str]) -> Prompts:
        for line in islice(head, _HEAD):
            if (said := _begun_at_prompt(line)) is not None:
                return cls(said["who"].encode(), _programs(said["command"]))
        return cls()

    def block(self, block: Block, first: int) -> None:
        """`first` is the number of the block's first line."""
        at = block.lines.find(self.literal) if self.literal else -1
        while at >= 0 and len(self.found) < _MOST:
            begin = max(block.lines.rfind(b"\n", 0, at), block.lines.rfind(b"\r", 0, at)) + 1
            line = (block.lines[begin : begin + WINDOW] + block.after)[:WINDOW].split(b"\n", 1)[0]
            said = _begun_at_prompt(line.decode("utf-8", "replace"))
            if said is not None and self.programs & _programs(said["command"]):
                number = first + block.lines.count(b"\n", 0, begin)
                self.found.append(Start(number, None, at_prompt=True))
            at = block.lines.find(b"\n", at)
            at = block.lines.find(self.literal, at) if at >= 0 else -1

    def again(self) -> list[Start]:
        return self.found if len(self.found) < _MOST else []


def _begun_at_prompt(line: str) -> re.Match[str] | None:
    """Nobody waits for what runs behind it."""
    text = line[:1_000].strip()
    found = _PROMPT.match(text)
    begins = found is not None and _BEGINS_A_JOB.search(found["command"]) and not _LOOKS.match(found["command"])
    return found if begins and not text.endswith("&") else None


def _programs(command: str) -> frozenset[str]:
    """The scripts of a command, by their names; without one, the command as it is but for its numbers."""
    scripts = frozenset(name.rpartition("/")[2] for name in _SCRIPT.findall(command))
    return scripts or frozenset([re.sub(r"\d", "", command)])


def _shaped(line: bytes) -> bytes:
    return line.strip().translate(None, b"0123456789")


def clock_of(lines: Iterable[bytes]) -> float | None:
    clocks = (as_written(line[:400].decode("utf-8", "replace")) for line in lines)
    return next((clock for clock in clocks if clock is not None), None)


def begun_again(starts: Sequence[Start], ends: Sequence[End]) -> list[int]:
    """The lines where another attempt begins. Logs of nodes, one put behind the other, have ends before starts, too,
    but no clock that goes on; and ranks begin one after the other, but not long after the end of all."""
    found: list[int] = []
    surest = sorted(starts, key=lambda one: (one.line, one.at_prompt, one.in_order, one.by_launcher))
    ordered = [Start(0, None), *{start.line: start for start in surest}.values()]
    first_end = min((end.line for end in ends), default=0)
    top = min((start.line for start in ordered if start.at_prompt), default=0)
    at_first = _launchers(ordered, 0, first_end)
    alone = at_first == 1
    for last, start in _since_the_last(ordered, found):
        between = [end for end in ends if last.line < end.line < start.line]
        once_more = alone and found and start.by_launcher and last.by_launcher
        whole = bool(found) and _launchers(ordered, last.line, start.line) >= at_first  # and each speaks once
        ended = (
            (start.at_prompt and start.line > top)
            or (between and _goes_on(last, between, start))
            or ((between or whole) and _as_many(at_first, last, start, ordered, ends))
        )
        if ended or (once_more and _later(last.clock, start.clock, 1)):
            found.append(start.line)
    return found


@dataclass(frozen=True, slots=True)
class Fall:
    """A process that ended by its own error, or by somebody else."""

    line: int
    of: bytes = b""
    """The error's last words; none where somebody else ended it."""
    program: str = ""


def begun_alone(starts: Sequence[Start], falls: Sequence[Fall], shown: Sequence[int] | None) -> list[int]:
    """The same of one process's log: it writes its first lines when it begins, and begins once more when it has fallen.
    Where it falls of the same again, it need not be told apart; nor where nothing is `shown` behind it, neither a step
    nor an error of its own: others may write their first lines late, and what they tell is that they miss somebody.
    In a log of one rank there are no others (None)."""
    found: list[int] = []
    last: Start | None = None
    ordered = sorted(falls, key=lambda fall: fall.line)
    for start in sorted(starts, key=lambda start: start.line):
        begun = last.line if last else 0
        before = next((fall for fall in reversed(ordered) if begun < fall.line < start.line), None)
        after = next((fall for fall in ordered if fall.line > start.line), None)
        goes_on = shown is None or after is not None or any(line > start.line for line in shown)
        if last and before and goes_on and _another(before, after) and not _at_once(last, start):
            found.append(start.line)
            last = start
        last = last or start
    return found


def _another(before: Fall, after: Fall | None) -> bool:
    """It falls of something else, or was ended; and it is the same program that falls."""
    if not before.of or after is None:
        return True
    return before.of != after.of and (before.program == after.program or not before.program or not after.program)


def _at_once(last: Start, start: Start) -> bool:
    """By its clock the later one begins no later: several write in it."""
    return last.clock is not None and start.clock is not None and start.clock - last.clock < 1


def _as_many(at_first: int, last: Start, start: Start, starts: Sequence[Start], ends: Sequence[End]) -> bool:
    """All launchers of several speak once more, after an end and before the next one: no node of theirs is late. Only
    where no clock tells."""
    if at_first < 2 or not start.by_launcher or None not in (last.clock, start.clock):
        return False
    next_end = min((end.line for end in ends if end.line > start.line), default=sys.maxsize)
    return _launchers(starts, start.line, next_end) >= at_first


def _launchers(starts: Iterable[Start], first: int, end: int) -> int:
    return sum(start.by_launcher and first <= start.line < end for start in starts)


def _since_the_last(starts: Sequence[Start], found: Sequence[int]) -> Iterator[tuple[Start, Start]]:
    """Each start, and that of the attempt so far, as its launcher tells it if it does."""
    for number, start in enumerate(starts[1:], 1):
        since = found[-1] if found else 0
        before = [one for one in starts[:number] if one.line >= since]
        said = next((one for one in before if one.by_launcher), before[0])
        clock = next((one.clock for one in (said, *before) if one.clock is not None), None)
        yield replace(said, line=before[0].line, clock=clock), start


def _goes_on(last: Start, ends: Sequence[End], start: Start) -> bool:
    """By the clock, from the end to the next start."""
    if start.in_order:
        return True
    sure = any(end.by_launcher for end in ends)
    clock = next((end.clock for end in reversed(ends) if end.clock is not None), start.before)
    if clock is not None:
        now = start.before if start.clock is None else start.clock
        return _later(clock, now, 0 if sure else _WHILE_THEY_END_S)
    return _later(last.clock, start.clock, _UNHEARD_S)


def _later(one: float | None, two: float | None, by: float) -> bool:
    return one is not None and two is not None and two - one >= by

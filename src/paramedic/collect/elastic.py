"""What launchers record of their processes: torchrun's table, agents' lines, restarts, and `error.json`."""

from __future__ import annotations

import json
import re
import signal
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paramedic.clocks import as_written
from paramedic.collect.starts import End, Fall, Start, begun_again, begun_alone, clock_of
from paramedic.regex import regex

_GROUP_FAILED = "will restart worker group"
_GROUP_STARTS = "Attempting to start training worker group"
_GROUP_STARTED = "Started distributed worker processes:"
"""What Ray Train says of each attempt, since its second version, and before."""
_GROUP_AGAIN = "Restarting all workers and"
_REQUEUED = "Requeued SLURM job"
_GIVEN_UP = "multiprocessing.errors.ChildFailedError"
_SAGEMAKER_ENDS = "Reporting training FAILURE"
_TIMES = regex(r"\b(?:SLURM|TORCHELASTIC)_RESTART_COUNT=(\d{1,4})\b")
"""Slurm's environment, as scripts print it: it grows by one whenever the job is begun again."""
_NUMBERED = regex(r"^[^\w\n]{0,12}(?:(?:start|launch|begin)(?:s|ing)? )?attempt[ :#=]{1,3}(\d{1,4})\b(?! to\b)", re.I)
"""What people's own scripts say before each start."""
_EXITED = regex(r"srun: error: [^\n]{1,2000}: Exited with exit code \d")
_MET_AGAIN, _LEFT = " workers recorded", " exit with status code "
"""Horovod's elastic driver, when all its workers have met, and of each that is gone."""
_HOST_LEFT = "blacklist failing host: "
"""What it says of it in any case, when those who are left are about to meet once more."""
_SHUT_DOWN = "rovodInternalError"
_GAVE_UP = "> stop running"
"""Not as rules have them: of what is found here alone no line is kept."""
_LAST_WORDS = 6  # lines
_LAUNCHED = "Setting OMP_NUM_THREADS environment variable for each process"
"""What torchrun says as its first words. Its workers begin when all its agents have, so none does after one failed."""
_CANCELLED = ("slurmstepd: error: *** ", "] error: *** ")
"""With the daemon's name before it, or the time, as its site would have it."""
_STEP_ENDS = ("srun: Terminating StepId=", *_CANCELLED)
_RETURNED = "exits with return code = "
_NEXT_STEP = "+ srun "
"""As a script that is traced says what it does next: one that waits for its steps, or it would have said so before."""
_COUNTED = "RESTART_COUNT="
_ATTEMPTS = ("attempt ", "Attempt ", "ATTEMPT ")
_SPAWNED_ENDS = "multiprocessing.spawn.Process"
_TO_BE_REQUEUED = "scontrol requeue "
_FATAL = "FatalError: `"
"""What Paddle says of a signal that ends its process, whoever has sent it."""
_BEGINS, _ENDS = "---Begin global rank ", "---End global rank "
_TRACKED = "Run data is saved locally in"
_TRACKED_SINCE = regex(r"\brun-(?P<day>\d{8})_(?P<time>\d{6})-\w")
"""What wandb says when it begins, in each run once: its folder is named after the time."""
_ENDED = ("failed (exitcode: ", _GIVEN_UP, _SPAWNED_ENDS, _RETURNED, _REQUEUED)
LITERALS = (
    "Root Cause (first observed failure)",
    "Failures:",
    "failed (exitcode: ",
    _RETURNED,
    " exited on signal ",
    "srun: error: ",
    " returned non-zero exit status ",
    " died with <Signals.",
    " crashed with exit code ",
    _LEFT,
    " exited with code ",
    _BEGINS,
    _ENDS,
    _GROUP_FAILED,
    _GROUP_STARTS,
    _GROUP_STARTED,
    _GROUP_AGAIN,
    _REQUEUED,
    _GIVEN_UP,
    _SAGEMAKER_ENDS,
    _MET_AGAIN,
    _HOST_LEFT,
    _SHUT_DOWN,
    _GAVE_UP,
    _LAUNCHED,
    _NEXT_STEP,
    _COUNTED,
    *_ATTEMPTS,
    *_STEP_ENDS,
    _SPAWNED_ENDS,
    _TO_BE_REQUEUED,
    _FATAL,
    _TRACKED,
)
MAX_ROWS = 4_096
_MAX_BOUNDS = 512
_NOTHING_NEW = 3  # so few lines are no attempt: the others' last words, or the end of what was copied
_FOREIGN_ALLOWED = 200
_MAX_TRACEBACK = 400  # lines of a row's traceback, the last ones
_MAX_TRACEBACK_TEXT = 64_000

_ROOT = "Root Cause (first observed failure)"
_ENTRY = regex(r"^\s*\[\d{1,9}\]:\s*$")
_FIELD = regex(r"^\s*(time|host|rank|exitcode|error_file|traceback)\s*: ?(.*)$")
_RANK = regex(r"^(\d{1,6}) \(local_rank: (\d{1,6})\)")
_EXIT = regex(r"^(-?\d{1,9})\s+\(pid: (\d{1,9})\)")
_AGENT = regex(r"failed \(exitcode: (-?\d{1,9})\) local_rank: (\d{1,6})(?: \(pid: (\d{1,9})\)|\s*$)")
_DEEPSPEED = regex(r"--local_rank=(\d{1,6})'.{0,8000}\] exits with return code = (-?\d{1,9})")
_LAUNCH = regex(
    r"Command '\[.{0,4000}?'--local[_-]rank=(\d{1,6})'.{0,8000}?\]' "
    r"(?:returned non-zero exit status (\d{1,3})|died with <Signals\.\w{1,20}: (\d{1,3})>)"
)
_BY_RANK = (
    regex(r"^Process (?P<rank>\d{1,6}) exit with status code (?P<code>\d{1,3})\."),  # Horovod
    regex(r"\bRank (?P<rank>\d{1,6}) crashed with exit code (?P<code>-?\d{1,3})\b"),  # Composer
    regex(r"\bGlobal rank (?P<rank>\d{1,6}) \(PID (?P<pid>\d{1,10})\) exited with code (?P<code>-?\d{1,3})\b"),
)
_SECTION = regex(r"-{3,20}(Begin|End) global rank (\d{1,6}) STD(?:OUT|ERR)-{3,20}")
_MPIRUN = regex(r"process rank (\d{1,6}) with PID (\d{1,10}) on node ([\w.-]{1,100}) exited on signal (\d{1,3})\b")
_SRUN = regex(
    r"srun: error: ([\w.-]{1,100}): tasks? ([\d,-]{1,2000}): (Killed|Aborted|Segmentation fault|Bus error|Terminated)"
)
_SIGNALS = {"Killed": -9, "Aborted": -6, "Segmentation fault": -11, "Bus error": -7, "Terminated": -15}
_ALL_MET = regex(r"\ball \d{1,6} workers recorded$")
_AGENT_PID = regex(r"[IWEF]\d{4} [\d:.]{8,20}\s{1,9}(\d{1,10}) |\[\w{0,20}launcher(\d{1,10}@[\w.-]{1,120})\]")
"""torchrun's and ft_launcher's agents: each says for itself that it starts its workers again."""
_BORN = regex(r"\bpid=(\d{1,10})\) world_rank=")
_LAST_SECOND = 9_000_000_000  # what nanoseconds in 64 bits can hold: the year 2255


@dataclass(slots=True)
class Failure:
    """One row: which rank ended how, as the agent saw it."""

    rank: int | None
    local_rank: int | None
    exitcode: int
    pid: int
    host: str = ""
    time: str = ""
    traceback: str = ""
    traceback_line: int = 0
    first_observed: bool = False
    line: int = 0
    by_srun: bool = False
    """The number is that of a task: of a rank, or of a launcher."""


def starts_table(text: str) -> bool:
    """The heading alone: `Failures: 0` in some other summary is none."""
    return text.strip() == "Failures:" or text.strip().startswith(_ROOT)


@dataclass(slots=True)
class FailureTable:
    """Collects rows from the heading to the closing rule of equals signs; lines of others may stand in between."""

    rows: list[Failure] = field(default_factory=list)
    closed: bool = False
    last_line: int = 0
    _entry: dict[str, str] = field(default_factory=dict)
    _entry_line: int = 0
    _traceback: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_TRACEBACK))
    _traceback_line: int = 0
    _root: bool = False
    _foreign: int = 0

    def feed(self, text: str, number: int) -> bool:
        """True when the line belongs to the table; sets `closed` when it has ended."""
        if text.startswith("====="):
            self.close()
        elif starts_table(text):
            self._flush()
            self._root = _ROOT in text
        elif _ENTRY.match(text):
            self._flush()
            self._entry_line = number
        elif self._traceback and (text[:1] in (" ", "\t") or not text.strip()):
            self._traceback.append(text)
        elif (found := _FIELD.match(text)) is not None:
            self._field(found[1], found[2].strip(), number)
        elif text.strip() and not text.startswith("-----") and "<NO_OTHER_FAILURES>" not in text:
            self._foreign += 1
            self.closed = self._foreign > _FOREIGN_ALLOWED
            return False
        self.last_line = number
        return True

    def close(self) -> None:
        self._flush()
        self.closed = True

    def _field(self, name: str, value: str, number: int) -> None:
        self._entry[name] = value
        self._entry_line = self._entry_line or number
        if name == "traceback":
            self._traceback.append(value)
            self._traceback_line = number

    def _flush(self) -> None:
        entry, self._entry = self._entry, {}
        traceback = _bounded([*self._traceback])
        self._traceback.clear()
        line, self._entry_line = self._entry_line, 0
        rank, code = _RANK.match(entry.get("rank", "")), _EXIT.match(entry.get("exitcode", ""))
        if rank and code and len(self.rows) < MAX_ROWS:
            self.rows.append(
                Failure(
                    rank=int(rank[1]),
                    local_rank=int(rank[2]),
                    exitcode=int(code[1]),
                    pid=int(code[2]),
                    host=entry.get("host", ""),
                    time=entry.get("time", ""),
                    traceback=traceback,
                    traceback_line=self._traceback_line,
                    first_observed=self._root,
                    line=line,
                )
            )


def _bounded(lines: list[str]) -> str:
    """A row's traceback: its first line, and as many of the last ones as a row may hold."""
    size = sum(map(len, lines))
    drop = 1
    while size > _MAX_TRACEBACK_TEXT and drop < len(lines):
        size -= len(lines[drop])
        drop += 1
    return "\n".join([*lines[:1], *lines[drop:]])


def agent_line(text: str, number: int) -> Failure | None:
    """`failed (exitcode: -9) local_rank: 2 (pid: 4711) of binary: …`: all there is when the table was lost."""
    if (found := _AGENT.search(text)) is None:
        return None
    pid = int(found[3]) if found[3] else -1 - int(found[2])
    return Failure(None, int(found[2]), int(found[1]), pid, line=number)


def other_ends(text: str, number: int) -> list[Failure]:
    """What launchers other than torchrun say of processes that ended; srun only where a signal ended them.

    torch names the local rank only, and DeepSpeed always the command that it started last, whoever ended. A process
    whose number is not said gets a negative one.
    """
    if "exits with return code = " in text and (found := _DEEPSPEED.search(text)) is not None:
        only = 0 if int(found[1]) == 0 else None
        return [Failure(None, only, int(found[2]), -1 - number, line=number)]
    if " exited on signal " in text and (found := _MPIRUN.search(text)) is not None:
        return [Failure(int(found[1]), 0, -int(found[4]), int(found[2]), found[3], line=number)]
    if "CalledProcessError: " in text and (found := _LAUNCH.search(text)) is not None:  # torch.distributed.launch
        code = int(found[2]) if found[2] else -int(found[3])
        return [Failure(None, int(found[1]), code, -1 - int(found[1]), line=number)]
    if " code " in text and (found := next((hit for p in _BY_RANK if (hit := p.search(text))), None)) is not None:
        rank, pid = int(found["rank"]), int(found["pid"]) if "pid" in found.groupdict() else -1 - int(found["rank"])
        return [Failure(rank, rank, int(found["code"]), pid, line=number)]
    if "srun: error: " in text and (found := _SRUN.search(text)) is not None:
        code = _SIGNALS[found[3]]
        return [Failure(task, 0, code, -1 - task, found[1], line=number, by_srun=True) for task in _tasks(found[2])]
    return []


def spawned_end(text: str, number: int) -> list[Failure]:
    """What torch.multiprocessing raises when one of its children ended without a word: it counts them on its node."""
    found = _SPAWNED.search(text) if _SPAWNED_ENDS in text else None
    if found is None:
        return []
    code = int(found[3]) if found[3] else -signal.Signals[found[2]].value if found[2] in _SIGNAL_NAMES else 1
    return [Failure(None, int(found[1]), code, -1 - int(found[1]), line=number)]


_SPAWNED = regex(
    r"ProcessExitedException: process (\d{1,6}) terminated with (?:signal (SIG[A-Z0-9]{2,10})|exit code (\d{1,4}))"
)
_SIGNAL_NAMES = frozenset(one.name for one in signal.Signals)


def section(text: str, current: int | None) -> int | None:
    """Whose output Composer's launcher prints from this line on, when its processes have ended."""
    if (_BEGINS not in text and _ENDS not in text) or (found := _SECTION.search(text)) is None:
        return current
    return int(found[2]) if found[1] == "Begin" else None


def _tasks(text: str) -> list[int]:
    """`0,2-3` as Slurm lists tasks."""
    tasks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last.isdigit() or not last) and len(first) < 7 and len(last) < 7:
            tasks += range(int(first), min(int(last or first), int(first) + MAX_ROWS) + 1)
        if len(tasks) > MAX_ROWS:
            break
    return tasks[:MAX_ROWS]


_JOB_ENDS = regex(r"\*\*\* (?:JOB|STEP) \S{1,40} ON .{1,200} CANCELLED AT .{1,60} DUE TO (?:PREEMPTION|NODE FAILURE)")
_LONG_GONE_S, _OTHER_ZONE_S = 120, 1_800


@dataclass(slots=True)
class Restarts:
    """Where one console goes over to the next attempt. torchrun says so only at level INFO; else an agent that saw its
    workers fail and does not print the table has started them again."""

    _failed: list[tuple[int, str]] = field(default_factory=list)
    _announced: list[tuple[int, str]] = field(default_factory=list)
    _groups: list[int] = field(default_factory=list)
    _again: list[int] = field(default_factory=list)
    _requeued: list[int] = field(default_factory=list)
    _hosts: list[int] = field(default_factory=list)
    _left: int = 0
    _lost: int = -1
    _anew: list[int] = field(default_factory=list)
    _tables: list[int] = field(default_factory=list)
    _given_up: int = 0
    _born: dict[str, int] = field(default_factory=dict)
    _launched: list[Start] = field(default_factory=list)
    _tracked: list[Start] = field(default_factory=list)
    _stops: list[End] = field(default_factory=list)
    _counted: int = 0
    _number: int = -1
    again: list[Start] = field(default_factory=list)
    """Where the log's own first lines stand once more."""
    alone: list[Start] = field(default_factory=list)
    falls: list[Fall] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)
    """The same of one process's log, where that process fell, and where it showed steps."""
    of_rank: bool = False
    """It is one rank's: whoever ends in it has ended it."""
    appended: bool = False
    """Only its first lines tell of starts: nobody started it again who knew of the one before."""
    silence: float = 0.0
    """So many seconds nobody had written, by clocks, when it was cancelled."""
    _ends: list[int] | None = None
    lines: int = 0
    """Of the whole console, once it is read; and the last that shows progress."""
    progress: int = 0

    def note(self, text: str, line: int, who: object) -> None:
        agent = _AGENT_PID.search(text[:200])
        key = f"{who}{agent[1] or agent[2] if agent else ''}"
        self._note_bounds(text, line)
        if "failed (exitcode: " in text and _AGENT.search(text):
            self._failed.append((line, key if agent else f"?{key}"))
        elif _GROUP_FAILED in text:
            self._announced.append((line, key))
        elif (
            _GROUP_STARTS in text
            or text.rstrip().endswith(_GROUP_STARTED)
            or (_MET_AGAIN in text and _ALL_MET.search(text))
        ):
            self._groups.append(line)
        elif any(word in text for word in (_LEFT, _HOST_LEFT, _SHUT_DOWN, _GAVE_UP)):
            self._note_elastic(text, line)
        elif _GROUP_AGAIN in text or _REQUEUED in text:
            self._again.append(line)
            if _REQUEUED in text:
                self._requeued.append(line + 1)
        elif text.strip().startswith(_ROOT):
            self._tables.append(line)
        elif _GIVEN_UP in text or _SAGEMAKER_ENDS in text or ("srun: error: " in text and _EXITED.search(text)):
            self._given_up = line
        elif "world_rank=" in text and (found := _BORN.search(text)) and len(self._born) < MAX_ROWS * 16:
            self._born[found[1]] = line

    def _note_elastic(self, text: str, line: int) -> None:
        """The others' last words follow what the driver says of a host that is gone."""
        if _GAVE_UP in text:
            self._lost = -_LAST_WORDS
        elif self._hosts and line - self._lost <= _LAST_WORDS:
            self._hosts[-1] = line
        elif _HOST_LEFT in text and self._left:
            self._hosts.append(line)
            self._lost = line
        if _LEFT in text:
            self._left = line
            if not self._groups:  # it went without a word before: they have met, all the same
                self._groups.append(0)

    def attempt(self, line: int, process: str = "") -> int:
        """Counted from 0. A Ray worker's line may come late: what counts is when the worker was started."""
        if self._ends is None:
            groups = [start - 1 for start in self._groups[1:]] or self._hosts
            said = sorted([*self._torchrun(), *self._again, *groups])
            starts = begun_again([*self._launched, *self.again, *self._tracked], self._stops)
            alone = [] if said or self._launched else self._begun_alone()
            self.appended = len(alone) > len(starts)
            starts = alone if self.appended else starts
            self._ends = _with_starts(said, starts)
            self._anew = sorted({bisect_left(self._ends, start) for start in (*starts, *self._requeued)})
        return 0 if not self._ends else bisect_left(self._ends, self._born.get(process.partition("@")[0], line))

    def _begun_alone(self) -> list[int]:
        return begun_alone(self.alone, self.fallen, None if self.of_rank else self.shown)

    @property
    def fallen(self) -> list[Fall]:
        """Where its process fell, or all that a launcher had started."""
        return [*self.falls, *(Fall(end.line) for end in self._stops if self.of_rank or end.whole)]

    def anew(self) -> Sequence[int]:
        """The attempts that no launcher of the attempt before has begun: a scheduler has, a script or somebody."""
        self.attempt(0)
        return self._anew

    def _note_bounds(self, text: str, line: int) -> None:
        """Where a launcher begins, and where one has ended all that it had started."""
        if max(len(self._launched), len(self._stops)) >= _MAX_BOUNDS:
            return
        if _LAUNCHED in text:
            self._launched.append(Start(line, as_written(text), by_launcher=True))
        elif _TRACKED in text and (since := _TRACKED_SINCE.search(text)) and len(self._tracked) < _MAX_BOUNDS:
            self._tracked.append(Start(line, as_written(f"{since['day']} {since['time']}")))
        elif _FATAL in text:
            self.falls.append(Fall(line))
        elif _NEXT_STEP in text and text.strip().lstrip("+").startswith(" srun "):
            self._launched.append(Start(line, None, in_order=True))
        elif _COUNTED in text and (times := _TIMES.search(text)) and int(times[1]) > self._counted:
            self._counted = int(times[1])
            self._launched.append(Start(line, None, in_order=True))
        elif any(word in text for word in _ATTEMPTS) and self._counts_on(_NUMBERED.match(text.strip())):
            self._launched.append(Start(line, None, in_order=True))
        elif any(word in text for word in (*_STEP_ENDS, _TO_BE_REQUEUED)) or _EXITED.search(text):
            by_launcher, whole = _TO_BE_REQUEUED in text, is_cancelled(text)
            self._stops.append(End(line, as_written(text), by_launcher, whole))
        elif any(word in text for word in _ENDED):
            self._stops.append(End(line, as_written(text), by_launcher=True))

    def _counts_on(self, found: re.Match[str] | None) -> bool:
        before = self._number
        self._number = max(before, int(found[1])) if found else before
        return self._number > before

    def note_around(self, text: str, line: int, before: Sequence[bytes], after: Sequence[bytes]) -> None:
        self._note_silence(as_written(text), clock_of(reversed(before)))
        self._note_later_start(text, line, before, after)

    def _note_silence(self, ended: float | None, heard: float | None) -> None:
        if ended is not None and heard is not None and ended > heard:
            self.silence = max(self.silence, ended - heard)

    def _note_later_start(self, text: str, line: int, before: Sequence[bytes], after: Sequence[bytes]) -> None:
        """Nobody of a job that Slurm has ended writes minutes later: it was begun again. Behind the end of a step its
        script may do something else. Where Slurm's clock is not that of the lines before, their zone is not known."""
        told, last = as_written(text), clock_of(reversed(before))
        if not _JOB_ENDS.search(text) or told is None or last is None or abs(told - last) > _OTHER_ZONE_S:
            return
        for number, raw in enumerate(after, line + 1):
            clock = clock_of((raw,))
            if clock is not None and clock - max(told, last) >= _LONG_GONE_S:
                self._launched.append(Start(number, clock, in_order=True))
                return

    def _torchrun(self) -> list[int]:
        if self._announced:
            return _rounds(self._announced)
        if len(self._tables) > 1 and any(agent.startswith("?") for _, agent in self._failed):
            ends = [line for line, _ in self._failed][len(self._tables) - 1 :: len(self._tables)]
        else:
            ends = _rounds(self._failed)
        return ends[:-1] if ends and self._is_final(ends[-1]) else ends

    def _is_final(self, end: int) -> bool:
        nothing_new = self.progress < end and self.lines - end < _NOTHING_NEW
        return nothing_new or self._given_up > end or any(table > end for table in self._tables)


def is_cancelled(text: str) -> bool:
    """Slurm has ended a step or a job."""
    return any(word in text for word in _CANCELLED)


def _with_starts(ends: list[int], starts: list[int]) -> list[int]:
    """Where a start follows an end, both tell of one and the same: the attempt goes as far as the line before it."""
    for number, start in enumerate(starts):
        after = starts[number - 1] if number else 0
        own = [end for end in ends if after <= end < start]
        ends = [end for end in ends if end not in own[-1:]] + [start - 1]
    return sorted(ends)


def _rounds(said: list[tuple[int, str]]) -> list[int]:
    """The last line of each round; a round ends when one of its agents speaks again."""
    ends: list[int] = []
    spoken: set[str] = set()
    for line, agent in said:
        if not spoken or agent in spoken:
            ends.append(line)
            spoken = set()
        ends[-1] = line
        spoken.add(agent)
    return ends


@dataclass(frozen=True, slots=True)
class ErrorFile:
    message: str
    callstack: str
    epoch_seconds: int | None


def read_error_file(data: bytes) -> ErrorFile | None:
    """`error.json` as `@record` writes it; None when it is something else."""
    try:
        document = json.loads(data)
        message: Any = document["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if isinstance(message, str):
        return ErrorFile(message, "", None)
    if not isinstance(message, dict):
        return None
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    return ErrorFile(_text(message.get("message")), _text(extra.get("py_callstack")), _seconds(extra.get("timestamp")))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _seconds(value: Any) -> int | None:
    text = str(value) if isinstance(value, str | int) else ""
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text) and int(text) < _LAST_SECOND else None

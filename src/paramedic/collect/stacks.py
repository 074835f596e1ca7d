"""Where processes stand: dumps of py-spy, of Python's faulthandler and of torch's debug server, line by line.

The same reader serves a file of dumps and dumps between the lines of a log. Of several dumps of one process the last
counts; how often in a row it stood there is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paramedic.collect.tracebacks import MAX_FRAMES
from paramedic.knowledge.waits import is_own_frame, load_waits, waits_in
from paramedic.redact import clipped, clipped_lines
from paramedic.regex import regex

HEADER = "(most recent call first)"
LITERALS = (
    HEADER, "(idle)", "(active)", "(active+gil)", "Python v3", "=== Rank ",
    "# rank", "# Rank", "= rank", "= Rank", "- rank", "- Rank", "# RANK", "= RANK", "- RANK", "# ^", "= ^", "- ^",
)  # fmt: skip
MAX_PROCESSES = 4_096
MAX_THREADS = 64
MAX_JSON = 64 << 20
_MAX_NATIVE = 8
_MAX_FRAME = 750
_MAX_NAME = 120

_PROCESS = regex(r"^Process (\d{1,10}): ")
_LOCAL_RANK = regex(r" --local[_-]rank[= ](\d{1,4})(?= |$)")
"""As DeepSpeed and old launchers tell each process."""
_PARENT = regex(r"^Parent Process (\d{1,10}): ")
_PYTHON = regex(r"^Python v\d")
_SPIED = regex(r'^Thread (0x[0-9A-Fa-f]{1,16}|\d{1,20}) \((idle|active|active\+gil)\)(?:: "(.{0,200})")?\s*$')
_SPIED_FRAME = regex(r"^ {4}(\S.{0,2000}) \(([^()\n]{1,500}):(\d{1,9})\)$")
_NATIVE_FRAME = regex(r"^ {4}(\S.{0,8000}) \(([^()\n]{1,500})\)$")
_LOCALS = regex(r"^ {8,}\S")
_DUMPED = regex(r"^(?:Current thread|Thread) 0x([0-9a-fA-F]{1,16})(?: \[(.{0,200})\])? \(most recent call first\):\s*$")
_DUMPED_FRAME = regex(r'^\s{0,8}File "(.{1,500})", line (\d{1,9}|\?{3}) in (.{1,300})$')
_NO_FRAME = regex(r"^\s{1,8}(?:<no Python frame>|\.\.\.)\s*$")
_STATE = regex(r"^State:\s{1,8}([RSDTtZXI]) \([\w ]{1,40}\)\s*$")
"""A line of /proc/PID/status, which people put beside a dump: of a stopped process there may be no stack."""
_RANK = regex(r"^=== Rank (\d{1,6}): (\S{1,300}) ===\s*$")
_TITLE = regex(
    r"^([#=-])\1{0,9} (?P<below>\^ ?)?(?:global )?(?:[Rr]ank|RANK)[ _:=]{0,2}(?P<rank>\d{1,6})\b"
    r"|^\[[\w.-]{1,100}[ :/,]{1,2}(?:global )?(?:[Rr]ank|RANK)[ _:=]{0,2}(?P<of_host>\d{1,6})\]:?\s*$"
)
"""What people write above each of the dumps that they put into one file, or below it with an arrow up."""
_UNDER_A_TITLE = 3
_FATAL = regex(r"^Fatal Python error: ")
_BEGINNINGS = (_PROCESS, _PYTHON, _SPIED, _DUMPED, _RANK, _TITLE, _FATAL)
_FIRST = frozenset("CFPT=#-")
_WORKER = regex(
    r"torch/utils/data/_utils/worker\.py:\d+ in _worker_loop$|/resource_tracker\.py:\d+ in main$"
    r"|torch/_inductor/compile_worker/\w+\.py:\d+ in (?:main|<module>)$"
    r"|concurrent/futures/process\.py:\d+ in _process_worker$|multiprocessing/pool\.py:\d+ in worker$"
)
_LAUNCHER = regex(
    r"torch/distributed/(?:run|launch)\.py:|torch/distributed/elastic/agent/|deepspeed/launcher/"
    r"|torch/multiprocessing/spawn\.py:\d+ in join"
)
_STARTS = regex(r" in (?:<module>|_run_module_as_main)$")
_THREAD_STARTS = regex(r"(?:^|/)threading\.py:\d+ in _bootstrap(?:_inner)?$")


@dataclass(slots=True)
class Thread:
    """Frames are kept as tools print them, the innermost first."""

    ident: str
    line: int
    name: str = ""
    state: str = ""
    frames: list[str] = field(default_factory=list)
    native: list[str] = field(default_factory=list)
    """Of C functions, those below the innermost Python frame."""

    @property
    def starts_program(self) -> bool:
        return bool(self.frames) and _STARTS.search(self.frames[-1]) is not None


@dataclass(slots=True)
class Dump:
    """One process at one moment."""

    pid: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    fatal: bool = False
    parent: int | None = None
    process: str = ""
    """The state's letter."""
    line: int = 0
    """Where it is said."""
    threads: list[Thread] = field(default_factory=list)

    @property
    def main(self) -> Thread | None:
        """The thread that runs the program: by its name or number, else the one that began with the program."""
        named = [t for t in self.threads if t.name == "MainThread" or (self.pid and t.ident == str(self.pid))]
        started = [t for t in self.threads if t.starts_program]
        others = [t for t in self.threads if t.frames and not _THREAD_STARTS.search(t.frames[-1])]
        return next((ts[-1] for ts in (named, started, others) if ts), self.threads[-1] if self.threads else None)

    def stands_in(self, pattern: re.Pattern[str]) -> bool:
        return any(pattern.search(frame) for thread in self.threads for frame in thread.frames)

    @property
    def key(self) -> str:
        if self.pid is not None:
            return f"pid {self.pid}"
        main = self.main
        return f"rank {self.rank}" if self.rank is not None else f"thread {main.ident if main else ''}"


@dataclass(slots=True)
class Stood:
    """A process over all its dumps."""

    last: Dump
    dumps: int = 1
    unchanged: int = 1


class StackReader:
    """Feed it the lines of one speaker. `open` says whether the next line may belong to a dump."""

    def __init__(self) -> None:
        self.open = False
        self.processes: dict[str, Stood] = {}
        self._dump = Dump()
        self._rank: int | None = None
        self._title = -1, -_UNDER_A_TITLE - 1
        """The rank that it names, and its line."""

    @staticmethod
    def begins(text: str) -> bool:
        return text[:1] in _FIRST and any(pattern.match(text) for pattern in _BEGINNINGS)

    def feed(self, text: str, line: int) -> None:
        text = text.rstrip("\r\n")
        if not text.strip():
            return
        self.open = self._header(text, line) or self._frame(text)
        if not self.open:
            self.close()

    def close(self) -> None:
        self._end()
        self.open, self._rank = False, None

    def _header(self, text: str, line: int) -> bool:
        if found := _SPIED.match(text):
            self._begin(Thread(found[1], line, found[3] or "", found[2]))
        elif found := _DUMPED.match(text):
            if any(t.starts_program or t.ident == found[1] for t in self._dump.threads):
                self._end()  # the thread that runs the program is dumped last
            self._begin(Thread(found[1], line, found[2] or ""))
        elif found := _PROCESS.match(text):
            self._end()
            self._dump.pid = int(found[1])
            local = _LOCAL_RANK.search(text[:4_000])
            self._dump.local_rank = int(local[1]) if local else None
            rank, at = self._title
            self._rank = rank if line - at <= _UNDER_A_TITLE else self._rank
        elif found := _RANK.match(text):
            self._end()
            self._rank = int(found[1])
        elif found := _TITLE.match(text):
            rank = int(found["rank"] or found["of_host"])
            if found["below"]:
                self._rank = rank
            self._end()
            self._title, self._rank = (self._title, None) if found["below"] else ((rank, line), self._rank)
        elif _FATAL.match(text):
            self._end()
            self._dump.fatal = True
        elif found := _PARENT.match(text):
            self._dump.parent = int(found[1])
        elif found := _STATE.match(text):
            self._dump.process, self._dump.line = found[1], line
        elif not _PYTHON.match(text):
            return False
        return True

    def _begin(self, thread: Thread) -> None:
        if len(self._dump.threads) < MAX_THREADS:
            self._dump.threads.append(thread)

    def _frame(self, text: str) -> bool:
        if not self._dump.threads:
            return False
        thread = self._dump.threads[-1]
        if found := _DUMPED_FRAME.match(text):
            _add(thread.frames, found[1], found[2], found[3])
        elif found := _SPIED_FRAME.match(text):
            _add(thread.frames, found[2], found[3], found[1])
        elif found := _NATIVE_FRAME.match(text):
            if not thread.frames and len(thread.native) < 4 * _MAX_NATIVE:
                thread.native.append(found[1][:_MAX_NAME])
        else:
            return _NO_FRAME.match(text) is not None or _LOCALS.match(text) is not None
        return True

    def _end(self) -> None:
        dump, self._dump = self._dump, Dump()
        if dump.threads or dump.process:
            dump.rank = self._rank
            note(self.processes, dump)


def note(processes: dict[str, Stood], dump: Dump) -> None:
    """Puts a dump to the earlier ones of its process; it moves to the end, for it is the latest."""
    before = processes.pop(dump.key, None)
    if before is None and len(processes) >= MAX_PROCESSES:
        return
    stood = Stood(dump)
    if before is not None:
        then, now = before.last.main, dump.main
        cut = then is not None and now is not None and _beginning_of(now, then)
        same = then is not None and now is not None and (cut or then.frames == now.frames)
        rank = before.last.rank if dump.rank is None else dump.rank
        dump = replace(before.last if cut else dump, rank=rank)
        stood = Stood(dump, before.dumps + 1, before.unchanged + 1 if same else 1)
    processes[dump.key] = stood


def _beginning_of(now: Thread, then: Thread) -> bool:
    """`py-spy dump | head`: the innermost frames alone, and where the others were seen before."""
    count = len(now.frames)
    return 0 < count < len(then.frames) and not now.starts_program and then.frames[:count] == now.frames


def of_json(data: bytes) -> dict[str, Stood] | None:
    """What `py-spy dump --json` prints; None for other JSON. `locals` are not looked at."""
    try:
        items = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(items, list) or not items or not all(map(_is_thread, items)):
        return None
    dumps: dict[int, Dump] = {}
    for number, item in enumerate(items, 1):
        dump = dumps.setdefault(item["pid"], Dump(item["pid"]))
        if len(dump.threads) < MAX_THREADS:
            dump.threads.append(_thread(item, number))
    processes: dict[str, Stood] = {}
    for dump in dumps.values():
        note(processes, dump)
    return processes


def may_be_json(head: bytes) -> bool:
    return head.lstrip()[:1] == b"[" and b'"frames"' in head and b'"thread_id"' in head


def _is_thread(item: Any) -> bool:
    return isinstance(item, dict) and type(item.get("pid")) is int and isinstance(item.get("frames"), list)


def _thread(item: Mapping[str, Any], number: int) -> Thread:
    state = "active+gil" if item.get("owns_gil") is True else "active" if item.get("active") is True else "idle"
    ident = item.get("os_thread_id") or item.get("thread_id")
    thread = Thread(str(ident)[:24], number, str(item.get("thread_name") or "")[:200], state)
    for frame in item["frames"][:500]:
        if isinstance(frame, dict):
            path, line, name = (frame.get(key) for key in ("filename", "line", "name"))
            if isinstance(line, int) and line > 0:
                _add(thread.frames, str(path)[:500], str(line)[:9], str(name)[:2000])
            elif not thread.frames and len(thread.native) < 4 * _MAX_NATIVE:
                thread.native.append(str(name)[:_MAX_NAME])
    return thread


def _add(frames: list[str], path: str, line: str, function: str) -> None:
    """py-spy names functions with their classes, faulthandler without: the bare name is common to both."""
    if len(frames) < 500:
        bare = function if function.startswith("<") else function.rsplit(".", 1)[-1]
        frames.append(f"{path}:{'0' if line == '???' else line} in {bare}")


def told(processes: Mapping[str, Stood], of_one: bool) -> Iterator[tuple[int | None, int, str, dict[str, Any]]]:
    """(rank, line, text, fields) of a "stack" event for each thread; `of_one`: all dumps are of one rank."""
    chosen = list(processes.values())
    working = [one for one in chosen if not one.last.stands_in(_LAUNCHER) and not one.last.stands_in(_WORKER)]
    parents = {one.last.pid for one in working if one.last.pid is not None}
    own = [one for one in working if one.last.parent not in parents]  # `py-spy dump --subprocesses` dumps children, too
    latest = own[-1:] if of_one and all(one.last.rank is None for one in own) else own
    for one in chosen:
        counts = any(one is other for other in latest)
        if counts and not one.last.threads:
            yield one.last.rank, one.last.line, *_described(one, Thread("", one.last.line), main=True)
        for thread in one.last.threads:
            main = counts and thread is one.last.main
            if main or thread.frames:
                yield one.last.rank, thread.line, *_described(one, thread, main)


def _described(one: Stood, thread: Thread, main: bool) -> tuple[str, dict[str, Any]]:
    frames = clipped_lines(thread.frames[:MAX_FRAMES][::-1], _MAX_FRAME)
    native = clipped_lines(thread.native[:_MAX_NATIVE], _MAX_NAME)
    waits = waits_in(frames, thread.native)
    own = [frame for frame in frames if is_own_frame(frame)]
    name = clipped(thread.name, _MAX_NAME) or ("MainThread" if main else "a thread")
    does = load_waits()[waits].says if waits else "stands"
    text = f"{name} {does}: {place(frames, own)}"
    fields = {
        "frames": frames, "own": own, "native": native, "thread": name, "main": main, "state": thread.state,
        "pid": one.last.pid, "waits": waits, "dumps": one.dumps, "unchanged": one.unchanged if main else 1,
        "fatal": one.last.fatal, "process": one.last.process, "local_rank": one.last.local_rank,
    }  # fmt: skip
    return text, {name: value for name, value in fields.items() if value is not None}


def place(frames: Sequence[str], own: Sequence[str]) -> str:
    """The innermost frame of the user's own code, and the library's function that it called."""
    if not frames:
        return "no Python frame"
    if not own or own[-1] == frames[-1]:
        return frames[-1]
    return f"{own[-1]} (in {frames[-1].rpartition(' in ')[2]})"


def waits_of(text: str) -> str:
    """What the main thread of the last process in a dump waits for, or ""."""
    reader = StackReader()
    for number, line in enumerate(text.split("\n"), 1):
        reader.feed(line, number)
    reader.close()
    main = [fields for _, _, _, fields in told(reader.processes, of_one=True) if fields["main"]]
    return str(main[-1]["waits"]) if main else ""


def without_activity(events: Sequence[Any]) -> list[Any]:
    """Of a file that is nothing but a dump: its last line is no rank's last word."""
    return [event for event in events if event.kind not in ("last", "progress", "bars", "complaint", "metric")]


def is_dump(head: bytes) -> bool:
    """By the first line that says anything."""
    first = head[:4096].lstrip().split(b"\n", 1)[0].decode("utf-8", "replace")
    return StackReader.begins(first) and not _FATAL.match(first)

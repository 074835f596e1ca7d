"""Puts Python tracebacks together again, one rank at a time, also when the ranks' lines are interleaved."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paramedic.collect.activity import shows_progress
from paramedic.model import is_own
from paramedic.regex import regex

START = "Traceback (most recent call last)"
FRAME = '", line '
"""Stands in every frame, also where the head of the traceback was cut off."""
LITERALS = (START, FRAME)
MAX_LINES = 10_000
MAX_TEXT = 16_000
MAX_FRAMES = 60
_FOREIGN_ALLOWED = 20
_BETWEEN_FRAMES = 40  # source and marker lines that may stand between two frames

_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_SPAWNED = "-- Process "  # torch.multiprocessing quotes the child's traceback after this line
_CHILD = regex(r"^-- Process (\d{1,6}) terminated")
_REMOTE = regex(r"\bray::.{1,400}?\(pid=(\d{1,10})(?:, ip=([\w.:-]{1,64}))?")
_ACTOR = regex(r"^\s*(pid|ip): ([\w.:-]{1,64})$", re.M)
_GRAPH_END = regex(r"\[Op:\w{1,200}\]")
_GRAPH_LINES = 200
_SAID_BELOW = regex(r"in user code:$|Exception encountered when calling .{1,200}$")
_MORE_OF_IT = regex(
    r"/job:\w{1,40}/replica:\d{1,7}/task:\d{1,7}\s*$|# of tasks that reached |The first task at the barrier: "
    r"|The actor (?:is dead|died) because |\[ERROR\] [\d:-]{19} \(PID:\d|E[A-Z]\d{4}: "
)
"""How the coordination service of TensorFlow and JAX, Ray and torch_npu go on in a message of several lines."""
_OF_RANK = regex(r":? {1,4}\(RANK (\d{1,6})\)\s*$")
_WIDEST_PREFIX = 200
_BOX = regex(r"^\s*[╭+][─-]{2,} ?" + re.escape(START) + r" ?[─-]{2,}[╮+]\s*$")
_BOX_FRAME = regex(r"^(\S.{0,500}?):(\d{1,9}) in (\S.{0,200})$")
_DIGIT = regex(r"\d")
_FRAME = regex(r'^\s*(?:> )?File "([^"]{1,500})", line (\d{1,9})(?:, in (.{1,200}))?')
_NAMED_FRAME = regex(r'^\s*File "[^"\n]{1,500}", line \d{1,9}(?:, in \S|\s*$)')
_NOTEBOOK = regex(
    r"^(?:File )?(?P<path>[~/.<][^\s:(]{1,400})(?::(?P<line>\d{1,9}))?,? in (?P<function><module>|[\w.<>]{1,200}\()"
)
_NOTEBOOK_CODE = regex(r"^-{1,6}> {0,6}\d{1,9} (.*)$")
_EXCEPTION = regex(r"^(?P<type>[A-Za-z_][\w.]{0,200}(?:\([\w., ]{1,200}\))?)(?::(?P<message>(?: .*)?)$|$)", re.DOTALL)
_TWICE = regex(r"^([A-Z]\w{3,40}(?:Error|Exception|Interrupt))(?:\1)+$")
"""Of two processes that wrote at the same moment."""
_USUAL_NAME = regex(r"(?:[Ee]rror|Exception|\wWarning|Interrupt|Exit|StopIteration|Failed|Failure|Fault|Group)$")
_LOG_LINE = regex(r"^\[?(?:[EWIFDV]\d{3,4} \d\d:|\[?20\d\d[-/]\d\d|(?:ERROR|WARNING|INFO|DEBUG|CRITICAL)\b)")
_GROUP = regex(r"^\s*\+ Exception Group " + re.escape(START))
_RANK = regex(r"(?<!lora[ _-])(?<!low[ _-])\brank[ _=:#-]{0,2}(\d{1,6})\b", re.I)
_ANNOUNCES = regex(r"error|fail|exception|crash|abort|died|caught", re.I)
_RAISING = regex(
    r"""^(?:raise (?P<type>[A-Za-z_][\w.]{0,200})\(|assert\b[^"']{1,300}?, ?)\(?"""
    r"""[fFrR]{0,2}["']{1,3}(?P<message>[^"'\n].{3,400})"""
)
_PASSED_OVER = regex(
    r"W\d{3,4} \d\d:\d\d:[\d.]{2,12} +\d+ (?:\S*/)?torch/_(?:dynamo|inductor|functorch)/"
    r"|[EI]\d{3,4} \d\d:\d\d:[\d.]{2,12} +\d+ (?:\S*/)?torch/_inductor/"
    r"(?:select_algorithm|codecache|autotune_process)\.py"
)
"""How torch begins the lines of a warning of its own, and of a kernel that it does without after all."""
_PRINTS_IT = regex(
    r" in __del__$|multiprocessing/util\.py:\d{1,5} in (?:_run_finalizers|__call__)$"
    r"|/logging/(?:__init__|handlers)\.py:\d{1,6} in emit$"
)
"""Where what is raised is printed, and passed over: finalisers, and logging that cannot write a record."""
_TRACKER = regex(r"/(?:wandb/(?:sdk|sdk_py\d+|filesync)|neptune/internal|comet_ml|swanlab)/")
_LOGGED = regex(r"\b(?:ERROR|WARNING|CRITICAL)\b")
"""Before a traceback's head: somebody has caught it, and logs it."""
_OWN_RANK = regex(
    r"(?:store based barrier on|communicator was aborted on|which did not receive grad for) rank:? (\d{1,6})\b"
)
_MARGIN = regex(r"^\s*(?:\| ?|\+[-+])")


@dataclass(slots=True)
class Traceback:
    """One traceback in the making. Feed it lines of its rank until `closed`."""

    first_line: int
    uncaught: bool
    """torch's own excepthook wrote it, so nobody caught it."""
    group: bool = False
    headless: bool = False
    """Its first lines are missing: only an exception below the frames shows that it was one."""
    exceptions: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    """The source lines of the last frames of the user's own code."""
    header: str = ""
    """The line before it, of the same process: `… ERROR rank 2 failed at step 12`."""
    logged: bool = False
    announced: bool = False
    """The header is not the end of another traceback."""
    line: int = 0
    last_line: int = 0
    closed: bool = False
    process: str = ""
    """`pid@ip` of the Ray worker in which it was raised."""
    of_rank: int | None = None
    """Whose it is, where a checkpoint that failed on some ranks quotes them on all."""
    child: int | None = None
    """The number of torch.multiprocessing's child that raised it."""
    _margin: str = ""
    _passed_over: bool = False
    _indent: str = ""
    _path: str = ""
    _width: int = 0
    _graph: int = 0
    _state: str = "frames"
    _flat: bool = False
    _said: str = ""
    _lines: int = 0
    _foreign: int = 0
    _since_frame: int = 0
    _size: int = 0

    @classmethod
    def opened_by(cls, text: str, number: int, by_torch: bool) -> Traceback:
        self = cls(number, by_torch, _GROUP.match(text) is not None, line=number, last_line=number)
        at = text.find(START)
        if (quoted := _OF_RANK.match(text, at + len(START))) is not None:
            self.of_rank = int(quoted[1])
        if _BOX.match(text):
            self._state, self._width = "box", len(text.rstrip())
        elif "\\n" in text[at:]:
            self._take_escaped(text[at:])
        elif not self.group and at <= _WIDEST_PREFIX and text[:at].strip():
            self._margin = _shape(text[:at])
            self.logged = _LOGGED.search(text[:at]) is not None
            self._passed_over = _PASSED_OVER.match(text[:at]) is not None
        elif not self.group and 0 < at <= _WIDEST_PREFIX:
            self._indent = text[:at]
        return self

    @classmethod
    def begun_by(cls, frame: str, number: int, by_torch: bool) -> Traceback:
        """From a frame on, above which nothing is left of it."""
        self = cls(number, by_torch, headless=True, line=number, last_line=number)
        self.feed(frame, number, by_torch)
        return self

    def _take_escaped(self, text: str) -> None:
        """A whole traceback in one line of JSON, its newlines escaped."""
        text = text.split('", "', 1)[0] if '\\"' in text else text
        for line in text.split("\\n")[1:]:
            if not self.closed:
                self.feed(line.replace('\\"', '"').replace("\\t", "\t"), self.line, False)
        self.closed = True

    @property
    def is_ignored(self) -> bool:
        """Nobody ends by it: it was printed, and passed over."""
        if self._passed_over:
            return True
        if any(map(_TRACKER.search, self.frames)) and not any(map(is_own, self.frames)):
            return True  # an experiment tracker's own threads: the program goes on without it
        if self.headless and (not self.types or self.types[-1].endswith("Warning")):
            return True  # somebody has printed where he stood
        if self.frames and _PRINTS_IT.search(self.frames[0]) is not None:
            return True
        return self.header.startswith("Exception ignored in")

    @property
    def own_rank(self) -> int | None:
        """Whose it is, where torch's message names the process that raises it."""
        found = _OWN_RANK.search(self.text[-MAX_TEXT:])
        return int(found[1]) if found else None

    @property
    def announced_rank(self) -> int | None:
        """Only a line that announces the error speaks of the rank that has it; the end of another one does not."""
        return rank_named(self.header) if self.announced and _ANNOUNCES.search(self.header) else None

    def feed(self, text: str, number: int, by_torch: bool) -> bool:
        """True when the line belongs to this traceback; sets `closed` when it has ended."""
        self._lines += 1
        if self._lines > MAX_LINES or self._size > MAX_TEXT:
            self.closed = True
            return False
        self.last_line = number
        if self._margin and _shape(text[: len(self._margin)]) == self._margin:
            text = text[len(self._margin) :]  # a logger has put its time and level before every line
        if self._indent:
            text = text.removeprefix(self._indent)  # pip and others indent what a process of theirs has said
        if self.group:
            return self._in_group(text, number)
        take: Callable[[str, int, bool], bool] = getattr(self, f"_in_{self._state}")
        return take(text, number, by_torch)

    def _in_frames(self, text: str, number: int, by_torch: bool) -> bool:
        if text[:1] in (" ", "\t") or text.startswith("> File ") or not text.strip():
            self._since_frame = 0 if self._frame(text) else self._since_frame + 1
            if self._since_frame == 1:
                self._keep_code(text.strip())
            if self._since_frame <= _BETWEEN_FRAMES:
                return True
        elif self._at_the_margin(text):
            return True
        elif START in text:
            self.closed = True
            return False
        elif self._exception(text, number):
            self._state = self._after_exception(text)
            return True
        elif self._remote(text):
            return True
        self._foreign += 1
        self.closed = self._foreign > _FOREIGN_ALLOWED
        return False

    def _at_the_margin(self, text: str) -> bool:
        """Whoever quotes a traceback may lose what its lines were indented by; a notebook writes frames of its own."""
        if self._frame(text):
            self._since_frame, self._flat = 0, True
            return True
        if (marked := _NOTEBOOK_CODE.match(text)) is not None:
            self._keep_code(marked[1].strip())
            return True
        if not self._flat or self._since_frame or START in text or _EXCEPTION.match(text):
            return False
        self._since_frame = 1
        self._keep_code(text.strip())
        return True

    def _after_exception(self, text: str) -> str:
        """Ray's quoted traceback follows its exception; TensorFlow's message is long and ends with the operation."""
        if self._remote(text):
            return "frames"
        from_tensorflow = self.types[-1].startswith("tensorflow.") or text.endswith("Graph execution error:")
        return "graph" if from_tensorflow and not _GRAPH_END.search(text) else "message"

    def _remote(self, text: str) -> bool:
        found = _REMOTE.search(text[:2_000]) if "ray::" in text else None
        if found is not None:
            self.process = f"{found[1]}@{found[2] or ''}"
        return found is not None

    def _in_graph(self, text: str, number: int, by_torch: bool) -> bool:
        self._graph += 1
        if self._graph > _GRAPH_LINES or START in text or _LOG_LINE.match(text) or text.startswith(_CHAIN):
            self._state = "gap"
            return self._in_gap(text, number, by_torch)
        if text.strip() and not self._frame(text):
            self._add(text)
        if _GRAPH_END.search(text):
            self._state = "message"
        return True

    def _in_box(self, text: str, number: int, by_torch: bool) -> bool:
        """rich draws a box around the frames; a long path goes on in the next line."""
        inner = text.strip()
        if inner[:1] in ("╰", "+"):
            self._state = "frames"
        elif inner[:1] in ("│", "|"):
            line = self._path + inner[1:-1].strip()
            found = _BOX_FRAME.match(line)
            if found:
                self._keep_frame(found[1], found[2], found[3])
            self._path = line if not found and line.startswith("/") and len(line) < 500 else ""
        else:
            return self._in_frames(text, number, by_torch)
        return True

    def _in_message(self, text: str, number: int, by_torch: bool) -> bool:
        if text.startswith("Original " + START):  # a DataLoader worker's traceback, quoted inside the message
            self._state = "frames"
        elif not text.strip():
            self._state = "gap"
        elif text.startswith((*_CHAIN, _SPAWNED)):
            self._chained(text)
        elif self._wrapped(text):
            self.exceptions[-1] += " " + text.strip()
        elif text[0] in " \t" or (by_torch and _goes_on(text)) or _MORE_OF_IT.match(text):
            if not self._frame(text):
                self._add(text)
        else:
            self.closed = True
        return not self.closed

    def _in_gap(self, text: str, number: int, by_torch: bool) -> bool:
        """After an empty line a chain may go on, and torch's prefix may show that the message does."""
        if not text.strip():
            return True
        if text.startswith((*_CHAIN, _SPAWNED)):
            self._chained(text)
            return True
        if self.exceptions and _SAID_BELOW.search(self.exceptions[-1]) and not _LOG_LINE.match(text):
            self._state = "below"
            return self._in_below(text, number, by_torch)
        if by_torch and _goes_on(text):
            self._state = "message"
            return self._in_message(text, number, by_torch)
        self.closed = True
        return False

    def _in_below(self, text: str, number: int, by_torch: bool) -> bool:
        """Autograph and Keras say behind an empty line what went wrong: with frames and indented, or in a paragraph."""
        inner = text.strip()
        if not inner:
            self._state = "below" if self.exceptions[-1].endswith("in user code:") else "gap"
        elif self._frame(text):
            self._since_frame = 0
        elif text[0] not in " \t" and self.exceptions[-1].endswith("in user code:"):
            self._state = "gap"
            self.closed = True
        elif not self._exception(inner, number):
            self._since_frame += 1
            if self._since_frame == 1 and text[0] in " \t":
                self._keep_code(inner)
            else:
                self._add(inner)
        return not self.closed

    def _chained(self, text: str) -> None:
        self._state = "chain"
        if (found := _CHILD.match(text)) is not None:
            self.child = int(found[1])

    def _wrapped(self, text: str) -> bool:
        """rich breaks a message where the next word would not have fitted into its width."""
        last = self.exceptions[-1].rsplit("\n", 1)[-1] if self.exceptions else ""
        word = text.split(" ", 1)[0]
        return bool(self._width and word) and len(last) <= self._width < len(last) + 1 + len(word)

    def _in_chain(self, text: str, number: int, by_torch: bool) -> bool:
        if START in text or self._remote(text):
            self._state = "box" if _BOX.match(text) else "frames"
            self.group = _GROUP.match(text) is not None
        elif text.strip():
            self.closed = True
        return not self.closed

    def _in_group(self, text: str, number: int) -> bool:
        """An exception group draws a margin of `|` before every line; each exception in it counts."""
        margin = _MARGIN.match(text)
        if margin is None:
            self.closed = True
            return False
        inner = text[margin.end() :]
        if not self._frame(inner):
            self._exception(inner, number)
        return True

    def _exception(self, text: str, number: int) -> bool:
        text = _TWICE.sub(r"\1", text) if _TWICE.match(text) else text
        found = _EXCEPTION.match(text)
        if found is None or not self._is_exception(found["type"], found["message"] or ""):
            return False
        self._add(text)
        if text == "AssertionError" and self._said.startswith("assert "):
            self.code = [*self.code[-2:], self._said[:200]]  # the condition is all that it says
        self.types.append(found["type"])
        self.line = number
        return True

    def _is_exception(self, type: str, message: str) -> bool:
        """Names of the usual kind; others only where nothing foreign came between and it is no `Epoch: 3`."""
        name = type.split("(", 1)[0].rsplit(".", 1)[-1]
        if self.headless and not _USUAL_NAME.search(name):
            return False
        if _USUAL_NAME.search(name):
            return True
        ordinary = "." not in type and (message.strip()[:1].isdigit() or name in ("Warning", "Note", "Info", "Usage"))
        return name[:1].isupper() and name != name.upper() and bool(self.frames) and not self._foreign and not ordinary

    def _frame(self, text: str) -> bool:
        if (found := _FRAME.match(text)) is not None:
            self._keep_frame(found[1], found[2], found[3] or "<module>")
        elif (found := _NOTEBOOK.match(text)) is not None:
            self._keep_frame(found["path"], found["line"] or "0", found["function"].rstrip("("))
        return found is not None

    def _keep_frame(self, path: str, line: str, function: str) -> None:
        self.frames.append(f"{path}:{line} in {function.rstrip(' *').lstrip()}")  # autograph marks frames with stars
        if len(self.frames) > MAX_FRAMES:
            del self.frames[MAX_FRAMES // 3]

    def _keep_code(self, text: str) -> None:
        """What people call on the line says what they were doing, also where they gave the function no name."""
        self._said = text if self.frames else ""
        if self.frames and is_own(self.frames[-1]) and text:
            self.code = [*self.code[-2:], text[:200]]

    def close(self) -> None:
        """Cut off below the frames: what the last one was about to raise stands in its source."""
        raising = None if self.exceptions else _RAISING.match(self._said)
        if raising is not None and len(self.frames) > 1:
            message = raising["message"].rstrip(" \\)").rstrip("\"'")
            self._exception(f"{raising['type'] or 'AssertionError'}: {message}", self.last_line)
        self.closed = True

    def _add(self, text: str) -> None:
        self.exceptions.append(text)
        self._size += len(text)

    @property
    def text(self) -> str:
        if not self.exceptions and self.frames:
            return f"Traceback cut off in {self.frames[-1]}"
        return "\n".join(self.exceptions)


OF_PROGRAM = (" in <module>", " in _run_module_as_main")
_OF_PROCESS = (*OF_PROGRAM, " in _bootstrap", " in _wrap")


def ends_all(frames: Sequence[str] | None, tops: tuple[str, ...] = _OF_PROCESS) -> bool:
    """Out of the whole program, and not merely out of a call that somebody guards."""
    first = str(frames[0]) if frames else ""
    return first.endswith(tops) and not first.startswith("<string>")


def begins_without_head(text: str) -> bool:
    """A frame as Python writes it; faulthandler's stacks have no comma before the function."""
    return _NAMED_FRAME.match(text) is not None


def _shape(text: str) -> str:
    """Two times look alike when their digits do not count."""
    return _DIGIT.sub("0", text)


def process_in(text: str) -> str:
    """`pid@ip` of the Ray actor that died, as Ray's message lists them."""
    found = dict(_ACTOR.findall(text)) if "class_name:" in text else {}
    return f"{found['pid']}@{found.get('ip', '')}" if found.get("pid", "").isdigit() else ""


def rank_named(text: str) -> int | None:
    """The one rank that a program's own line speaks of, if it is one."""
    named = set(_RANK.findall(text[:500]))
    return int(named.pop()) if len(named) == 1 else None


def _goes_on(text: str) -> bool:
    """Whether a line of the same rank can belong to the message before it."""
    return START not in text and not _LOG_LINE.match(text) and not shows_progress(text)

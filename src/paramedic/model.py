"""The nouns of Paramedic. Everything it says is one chain: stage → symptom → root cause → fix, with evidence.

Standard library only; every other module imports this one and this one imports nothing of ours.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
Scope = Literal["job", "host", "rank"]
Safety = Literal["safe", "unsafe", "manual"]
Consequence = Literal["never", "possible", "always"]
"""Can it be the mere echo of another rank's failure? OOM never is, a timeout may be, the agent's SIGTERM always is."""

VERDICT_AT = 0.5
"""No answer beats a wrong one: below this confidence the verdict is null."""
_BELIEVABLE = 1 << 18
"""Ranks: more than any job has had. A world of millions is a misread number."""
_OF_JOB = re.compile(r"(?:^|/)slurm-(\d{2,12})\b")
UNKNOWN_ZONE_NS = 14 * 3_600_000_000_000
"""Local time without a zone may be this far from UTC; between lines of one host only the resolution counts."""
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")


class Symptom(str):
    """A symptom's id that knows its stage; only `knowledge` makes them, so the stage cannot be set."""

    __slots__ = ("stage",)
    stage: str

    def __new__(cls, id: str, stage: str) -> Symptom:
        self = super().__new__(cls, id)
        self.stage = stage
        return self

    def __reduce__(self) -> tuple[type[Symptom], tuple[str, str]]:  # so that copies keep the stage
        return Symptom, (str(self), self.stage)


@dataclass(frozen=True, slots=True)
class Source:
    """A file, stream or probe that was read. Members of archives are named `a.tar!/x`."""

    id: str
    kind: str
    rank: int | None = None
    host: str | None = None
    attempt: int = 0
    lines: int = 0
    bytes: int = 0
    sha256: str | None = None

    @property
    def name(self) -> str:
        """Of its file, without folders and endings: often that of a host or pod."""
        return self.id.rsplit("/", 1)[-1].split(".", 1)[0]

    @property
    def job(self) -> str:
        """The number of the Slurm job whose output it is, by its name."""
        found = _OF_JOB.search(self.id)
        return found[1] if found else ""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened on a rank. `seq` orders events within their source: the primary order."""

    source: str
    seq: int
    kind: str
    text: str
    line: int | None = None
    rank: int | None = None
    host: str | None = None
    attempt: int = 0
    utc_ns: int | None = None
    uncertainty_ns: int = 0
    time_text: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def zoned(self) -> bool:
        """Its line says which zone its time is of, so that it can be told as UTC."""
        return self.uncertainty_ns < UNKNOWN_ZONE_NS

    @property
    def time(self) -> str | None:
        """For people: ISO time where the clock is known, with its zone if that is, too; else the text found."""
        if self.utc_ns is None:
            return self.time_text or None
        try:
            moment = datetime.fromtimestamp(self.utc_ns / 1e9, UTC)
            return (moment if self.zoned else moment.replace(tzinfo=None)).isoformat(timespec="milliseconds")
        except (OverflowError, ValueError, OSError):  # a stranger's recording may say anything
            return self.time_text or None


_Draft: Any = make_dataclass("_Draft", Event.__dataclass_fields__, slots=True)


def event_of(values: Iterable[Any]) -> Event:
    """An Event of all its values in their order, in a tenth of the time that one takes which is frozen from the start:
    of a large log there are hundreds of thousands."""
    made: Event = _Draft(*values)
    made.__class__ = Event  # its slots are the same
    return made


@dataclass(frozen=True, slots=True)
class Fact:
    """A value probed or parsed: `version torch 2.13.0`, `config zero_optimization.stage = 3`."""

    name: str
    value: Any
    source: str
    line: int | None = None
    rank: int | None = None
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """What could not be examined, and why. Silence is never a pass."""

    what: str
    why: str


_FEW = 256


class _Texts:
    """Many texts, each that recurs once, one behind the other: a word is looked for in all of them at a time."""

    def __init__(self, texts: Sequence[str]) -> None:
        same: dict[str, list[int]] = {}
        for at, text in enumerate(texts):
            same.setdefault(text, []).append(at)
        raw = [text.encode("utf-8", "surrogatepass") for text in same]
        self._all = b"\0".join(raw)
        self._ends = array("Q", accumulate(len(text) + 1 for text in raw))
        self._places = array("Q", chain.from_iterable(same.values()))
        self._last = array("Q", accumulate(map(len, same.values())))

    def with_one_of(self, words: Iterable[str]) -> list[int]:
        """Where in their order the texts stand in which one of the words is."""
        found = {number for word in words for number in self._with(word.encode("utf-8", "surrogatepass"))}
        return sorted(at for n in found for at in self._places[self._last[n - 1] if n else 0 : self._last[n]])

    def _with(self, word: bytes) -> Iterator[int]:
        at = self._all.find(word)
        while at >= 0:
            number = bisect_right(self._ends, at)
            yield number
            at = self._all.find(word, self._ends[number])


@dataclass(frozen=True)
class Run:
    """The recording that all analysis reads. Without slots: what it is asked of all its events it works out once."""

    id: str
    sources: tuple[Source, ...] = ()
    events: tuple[Event, ...] = ()
    facts: tuple[Fact, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    world_size: int | None = None
    frameworks: tuple[str, ...] = ()

    def of_kind(self, *kinds: str) -> Sequence[Event]:
        """Its events of these kinds, in their order. Most questions are about few of many events."""
        if len(kinds) > 1 and kinds not in self._by_kinds:
            self._by_kinds[kinds] = [event for event in self.events if event.kind in kinds]
        return self._by_kinds.get(kinds, ())

    def saying(self, word: str, *kinds: str) -> list[Event]:
        """Those of its events of these kinds in whose text it stands: far fewer than patterns would be tried on."""
        return self.saying_one_of((word,), *kinds)

    def saying_one_of(self, words: Sequence[str], *kinds: str) -> list[Event]:
        events = self.of_kind(*kinds)
        if len(events) < _FEW:
            return [event for event in events if any(word in event.text for word in words)]
        return [self.events[at] for at in sorted(at for kind in kinds for at in self._where_said(words, kind))]

    def _where_said(self, words: Sequence[str], kind: str) -> Iterator[int]:
        """Their places among all events."""
        if kind not in self._texts:
            places = array("Q", (at for at, event in enumerate(self.events) if event.kind == kind))
            self._texts[kind] = _Texts([self.events[at].text for at in places]), places
        texts, places = self._texts[kind]
        return map(places.__getitem__, texts.with_one_of(words))

    @cached_property
    def stepping(self) -> tuple[Event, ...]:
        """What shows that it trains: progress that names its steps, and is no table or bar of something else."""
        return tuple(event for event in self.of_kind("progress") if not event.fields.get("stepless"))

    @cached_property
    def _texts(self) -> dict[str, tuple[_Texts, array[int]]]:
        return {}

    @cached_property
    def _by_kinds(self) -> dict[tuple[str, ...], list[Event]]:
        found: dict[tuple[str, ...], list[Event]] = {}
        for event in self.events:
            found.setdefault((event.kind,), []).append(event)
        return found

    @cached_property
    def ranks_seen(self) -> tuple[int, ...]:
        # A progress line may merely speak of some rank ("lora rank 16"): it does not prove that there is one.
        found = {s.rank for s in self.sources} | {e.rank for e in self.events if e.kind != "progress"}
        return tuple(sorted(r for r in found if r is not None))

    @property
    def expected_ranks(self) -> frozenset[int]:
        """All ranks of the job where its size is known (and believable), else up to the highest that was seen."""
        size = self.world_size or max(self.ranks_seen, default=-1) + 1
        return _first_ranks(size) if size <= _BELIEVABLE else frozenset(self.ranks_seen)


def names_processes(events: Iterable[Event]) -> bool:
    """A launcher tells which of its processes ended; then srun's tasks are such launchers, one on each node."""
    return any(event.kind == "exit" and event.fields.get("pid", 0) > 0 for event in events)


@lru_cache(maxsize=4)
def _first_ranks(size: int) -> frozenset[int]:
    return frozenset(range(size))


def last_exception(event: Event) -> str:
    """Of a traceback, the line that names the exception, and not the last one of a long message."""
    name, lines = str(event.fields["types"][-1]), event.text.split("\n")
    return next((line for line in reversed(lines) if line.startswith(name)), lines[-1])


_RELATIVE = re.compile(r"(?:\.{1,2}/)?\w[\w./-]{0,200}\.py(?::|$)")


def is_own(frame: str) -> bool:
    """A frame, or a path, of the user's own code: neither installed nor of Python itself, nor written by a compiler.
    What is run by a relative path, as `python train.py`, stands so in its frames."""
    return (frame.startswith("/") or _RELATIVE.match(frame) is not None) and not any(
        part in frame for part in ("-packages/", "/lib/python", "/paramedic/rank/", "/torchinductor_")
    )


@dataclass(frozen=True, slots=True)
class Evidence:
    """A quoted event, with a few lines before and after it."""

    event: Event
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cause:
    id: str
    probability: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Fix:
    """What to change. `action` has a `kind`: env, config, launch, package, command or code."""

    pattern: str
    title: str
    safety: Safety
    action: Mapping[str, Any]
    verify: str = ""
    cause: str | None = None
    when: Mapping[str, Any] = field(default_factory=dict)
    """What must be seen for it to be offered: see `fix.py`."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`confidence` is the probability that the symptom is right; causes have their own, the rest of 1 is unknown."""

    rule: str
    symptom: Symptom
    severity: Severity
    scope: Scope
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    confidence: float
    summary: str
    evidence: tuple[Evidence, ...]
    causes: tuple[Cause, ...] = ()
    fixes: tuple[Fix, ...] = ()
    consequence: Consequence = "never"
    attempt: int = 0
    fields: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    """What the evidence says for or against causes: factors of their odds."""

    @property
    def stage(self) -> str:
        return self.symptom.stage


@dataclass(frozen=True, slots=True)
class Cascade:
    """What followed from the first failure: `count` messages on `ranks`, because of the verdict's rule."""

    symptom: Symptom
    ranks: tuple[int, ...]
    because: str
    count: int
    events: tuple[Event, ...] = ()
    rules: frozenset[str] = frozenset()
    """That found them."""


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A finding left out on purpose, and why."""

    rule: str
    why: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Report:
    """The answer. `verdict` is None when nothing failed or when no answer beats a wrong one."""

    run: Run
    verdict: Finding | None
    findings: tuple[Finding, ...] = ()
    cascades: tuple[Cascade, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    suppressed: tuple[Suppressed, ...] = ()

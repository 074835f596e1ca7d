"""What differs between a run that worked and one that did not, the most relevant to the failure first.

A change is relevant as far as the failure's likely causes are ones that such a change can bring about (which ones, is
in `knowledge/relevance.toml`), and more so when the failure's own message names it. Pure functions.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Protocol

from paramedic.model import Finding, Report

MOST = 2_000
"""Differences that are named; the rest is counted."""
_MOST_DIFF = 400  # lines of one program's difference that are kept
_MOST_CODE = 20_000  # lines of a program that are compared
_PACE = 1.25  # steps that are so much slower, or faster, or take so much more memory, are said
_PROPORTIONS = ("seconds a step", "memory in GB")
_REASONS = {
    "pace": "how far it came",
    "memory in GB": "what it took, as it said itself",
    "warning": "only the bad run says it",
}
_NAMED = 0.5
_IN_EVERY_MESSAGE = ("torch", "python", "cuda", "nccl", "tensorflow")
_NAMED_CODE = 0.15  # a traceback names the program whatever failed
_BASE = {
    "failure": 1.0, "world size": 0.12, "version": 0.1, "config": 0.1, "launch": 0.09, "argument": 0.09, "code": 0.09,
    "environment": 0.08, "hosts": 0.06, "warning": 0.05, "statement": 0.05, "pace": 0.03,
}  # fmt: skip
KINDS = tuple(_BASE)
_VOLATILE = re.compile(
    r"port\b|run.?id|rdzv.?id|world.?info|timestamp|time.?stamp|\bdate|uuid|session|job.?id|log.?dir|output.?dir", re.I
)


class Stated(Protocol):
    @property
    def values(self) -> tuple[str, ...]: ...
    @property
    def source(self) -> str: ...
    @property
    def line(self) -> int | None: ...


class Code(Protocol):
    @property
    def text(self) -> str: ...
    @property
    def source(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs: its diagnosis, and what is known of what it was made of."""

    report: Report
    world_size: int | None
    hosts: tuple[str, ...]
    stated: Mapping[tuple[str, str], Stated]
    code: Mapping[str, Code] = field(default_factory=dict)

    @property
    def failure(self) -> Finding | None:
        errors = [finding for finding in self.report.findings if finding.severity == "error"]
        return self.report.verdict or (errors[0] if errors else None)


@dataclass(frozen=True, slots=True)
class Place:
    source: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """`ok` or `bad` is None where that run does not say it at all."""

    kind: str
    key: str
    ok: str | None
    bad: str | None
    relevance: float = 0.0
    why: str = ""
    at_ok: Place | None = None
    at_bad: Place | None = None
    detail: tuple[str, ...] = ()
    """The changed lines of a program."""


def compare(ok: Side, bad: Side) -> tuple[Change, ...]:
    """Every difference, the most relevant first. What one run alone says counts where the other says such things."""
    changes = _once([*_failures(ok, bad), *_run(ok, bad), *_stated(ok, bad), *_programs(ok, bad)])
    ranked = [_ranked(change, bad.failure) for change in changes]
    order = {kind: number for number, kind in enumerate(KINDS)}
    return tuple(sorted(ranked, key=lambda c: (-c.relevance, order[c.kind], c.key)))


def _once(changes: Sequence[Change]) -> list[Change]:
    """Without lines of a log that only state the versions which are told already."""
    versions = [change for change in changes if change.kind == "version" and change.ok and change.bad]
    return [change for change in changes if change.kind != "statement" or not _only_versions(change, versions)]


def _only_versions(line: Change, versions: Sequence[Change]) -> bool:
    before, after = line.ok or "", line.bad or ""
    for change in versions:
        if change.key.lower() in before.lower():
            before, after = _without(before, change.ok), _without(after, change.bad)
    return before == after


def _without(text: str, values: str | None) -> str:
    for value in sorted((values or "").split(", "), key=len, reverse=True):
        text = text.replace(value, "<version>") if value else text
    return text


# -- what differs --------------------------------------------------------------------------------------------------


def _failures(ok: Side, bad: Side) -> Iterator[Change]:
    one, two = ok.failure, bad.failure
    named = [None if f is None else f"{f.rule} {f.symptom}" for f in (one, two)]
    if named[0] != named[1]:
        yield Change("failure", "failure", named[0] or "none", named[1] or "none", at_ok=_at(one), at_bad=_at(two))


def _at(finding: Finding | None) -> Place | None:
    if finding is None or not finding.evidence:
        return None
    event = finding.evidence[0].event
    return Place(event.source, event.line)


def _run(ok: Side, bad: Side) -> Iterator[Change]:
    one, two = ok.world_size, bad.world_size
    if one != two and one is not None and two is not None:
        yield Change("world size", "world size", str(one), str(two))
    if ok.hosts and bad.hosts and set(ok.hosts) != set(bad.hosts):
        yield Change("hosts", "hosts", ", ".join(ok.hosts[:16]), ", ".join(bad.hosts[:16]))


def _stated(ok: Side, bad: Side) -> Iterator[Change]:
    both = {kind for kind, _ in ok.stated} & {kind for kind, _ in bad.stated}
    files = {_file(kind, key) for kind, key in ok.stated} & {_file(kind, key) for kind, key in bad.stated}
    for kind, key in dict.fromkeys([*ok.stated, *bad.stated]):
        one, two = ok.stated.get((kind, key)), bad.stated.get((kind, key))
        if kind == "warning":
            if one is None and two is not None:
                yield Change(kind, key, None, two.values[0], at_bad=_place(two))
        elif kind == "pace":
            yield from _pace(key, one, two)
        elif one is not None and two is not None:
            if set(one.values) != set(two.values):
                yield Change(kind, key, _joined(one), _joined(two), 0.0, "", _place(one), _place(two))
        elif kind in both and kind not in ("statement", "hosts") and _file(kind, key) in files:
            yield Change(kind, key, _joined(one), _joined(two), 0.0, "", _place(one), _place(two))


def _file(kind: str, key: str) -> str:
    """Keys of a file that only one run has are not each a difference."""
    return f"{kind} {key.split(': ', 1)[0]}" if kind == "config" else kind


def _joined(stated: Stated | None) -> str | None:
    return None if stated is None else ", ".join(stated.values)


def _place(stated: Stated | None) -> Place | None:
    return None if stated is None else Place(stated.source, stated.line)


def _pace(key: str, one: Stated | None, two: Stated | None) -> Iterator[Change]:
    """Clocks and losses are never the same twice: only what is out of proportion counts."""
    if one is None or two is None:
        return
    before, after = (max(map(_number, stated.values)) for stated in (one, two))
    finite = math.isfinite(before) and math.isfinite(after)
    if key in _PROPORTIONS:
        differs = finite and not before / _PACE <= after <= before * _PACE
    elif key == "last loss":
        odd = [all(math.isfinite(_number(value)) for value in stated.values) for stated in (one, two)]
        differs = odd[0] != odd[1]
    else:
        differs = before != after
    if differs:
        shown = [
            ", ".join(s.values) if key == "last loss" else f"{n:.4g}" if n % 1 else f"{n:.0f}"
            for s, n in ((one, before), (two, after))
        ]
        yield Change("pace", key, shown[0], shown[1], at_ok=_place(one), at_bad=_place(two))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _programs(ok: Side, bad: Side) -> Iterator[Change]:
    """By the same path, else by the same name where each run has it once."""
    for name, one in ok.code.items():
        other = name if name in bad.code else _only_namesake(name, ok.code, bad.code)
        if other is None:
            continue
        two = bad.code[other]
        if one.text == two.text:
            continue
        before, after = (code.text.split("\n")[:_MOST_CODE] for code in (one, two))
        lines = [*difflib.unified_diff(before, after, lineterm="", n=1)][2:] if len(before) * len(after) < 4e7 else []
        added = sum(line.startswith("+") for line in lines)
        removed = sum(line.startswith("-") for line in lines)
        shown = f"+{added} -{removed} lines" if lines else "differs"
        yield Change(
            "code", name, f"{len(before)} lines", f"{len(after)} lines, {shown}",
            at_ok=Place(one.source), at_bad=Place(two.source), detail=tuple(line[:400] for line in lines[:_MOST_DIFF]),
        )  # fmt: skip


def _only_namesake(name: str, ours: Mapping[str, Code], theirs: Mapping[str, Code]) -> str | None:
    base = name.rsplit("/", 1)[-1]
    here = [other for other in ours if other.rsplit("/", 1)[-1] == base]
    there = [other for other in theirs if other.rsplit("/", 1)[-1] == base]
    return there[0] if len(here) == len(there) == 1 else None


# -- what matters --------------------------------------------------------------------------------------------------


@cache
def _relevance() -> Mapping[str, tuple[tuple[str, re.Pattern[str], float], ...]]:
    text = resources.files("paramedic.knowledge").joinpath("relevance.toml").read_text("utf-8")
    return {
        cause: tuple((kind, re.compile(pattern, re.I), weight) for kind, pattern, weight in rows)
        for cause, rows in tomllib.loads(text).items()
    }


def _ranked(change: Change, failure: Finding | None) -> Change:
    if change.kind == "failure":
        return _with(change, 1.0, "what is to be explained")
    score, reasons = _BASE[change.kind], []
    if failure is not None:
        shares = {cause.id: cause.probability * _weight(cause.id, change) for cause in failure.causes}
        score += sum(shares.values())
        top = max(shares, key=shares.__getitem__, default="")
        if top and shares[top] >= 0.05:
            reasons.append(f"can bring about {top.replace('-', ' ')} ({_probability(failure, top):.0%})")
        if _named(change, failure):
            score += _NAMED_CODE if change.kind == "code" else _NAMED
            reasons.insert(0, "the failure's own message names it")
    if _VOLATILE.search(change.key):
        score *= 0.3
    if change.kind in ("pace", "warning", "statement") and not reasons:
        reasons.append(_REASONS.get(change.key) or _REASONS.get(change.kind, ""))
    return _with(change, min(score, 0.99), "; ".join(filter(None, reasons)))


def _with(change: Change, relevance: float, why: str) -> Change:
    return Change(
        change.kind,
        change.key,
        change.ok,
        change.bad,
        round(relevance, 3),
        why,
        change.at_ok,
        change.at_bad,
        change.detail,
    )


def _weight(cause: str, change: Change) -> float:
    return max(
        (w for kind, key, w in _relevance().get(cause, ()) if kind == change.kind and key.search(change.key)),
        default=0.0,
    )


def _probability(failure: Finding, id: str) -> float:
    return next((cause.probability for cause in failure.causes if cause.id == id), 0.0)


def _named(change: Change, failure: Finding) -> bool:
    """Whether the evidence has the key as a word: `train_batch_size`, `transformers`, or the program's own frame."""
    events = [item.event for item in failure.evidence]
    said = "\n".join(text for event in events for text in (event.text, *map(str, event.fields.get("frames", ()))))[
        :40_000
    ]
    if change.kind == "warning":
        return False
    key = re.split(r"[.:/\s]", change.key)[-1] if change.kind == "config" else change.key.lstrip("-").rsplit("/", 1)[-1]
    if len(key) < 4 or key in _IN_EVERY_MESSAGE or change.kind in ("statement", "pace", "hosts", "world size"):
        return False
    if key.lower() not in said.lower():
        return False  # of thousands of keys hardly any is named: no pattern is compiled for the others
    return re.search(rf"(?<![\w-]){re.escape(key)}(?![\w-])", said, re.I) is not None

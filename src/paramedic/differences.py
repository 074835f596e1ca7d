"""What differs between a run that worked and one that did not, the most relevant to the failure first.

A change is relevant as far as the failure's likely causes are ones that such a change can bring about (which ones, is
in `knowledge/relevance.toml`), and more so when the failure's own message names it. Pure functions.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Protocol

from paramedic.model import Finding, Report

MOST = 2_000
"""Differences that are named; the rest is counted."""
_MOST_DIFF = 400  # lines of one program's difference that are kept
_MOST_CODE = 20_000  # lines of a program that are compared
_PACE = 1.25  # steps that are so much slower, or faster, or take so much more memory, are said
_PROPORTIONS = ("seconds a step", "done a second", "memory in GB")
_REASONS = {
    "pace": "how far it came",
    "memory in GB": "what it took, as it said itself",
    "warning": "only the bad run says it",
}
_NAMED = 0.5
_NAMED_VALUE = 0.3
_NAMED_PARTLY = 0.15
_FAILED_THERE = 0.6
_SHOWN_HOSTS = 16
_IN_EVERY_MESSAGE = ("torch", "python", "cuda", "nccl", "tensorflow")
_NAMED_CODE = 0.15  # a traceback names the program whatever failed
_BASE = {
    "failure": 1.0, "world size": 0.12, "version": 0.1, "config": 0.1, "launch": 0.09, "argument": 0.09, "code": 0.09,
    "environment": 0.08, "hosts": 0.06, "warning": 0.05, "statement": 0.05, "pace": 0.03,
}  # fmt: skip
KINDS = tuple(_BASE)
_VOLATILE = re.compile(
    r"port\b|run.?id|rdzv.?id|world.?info|time.?stamp|\bdate|uuid|session|job.?id|\bseed|\blabels?\b|annotations|queue"
    r"|(?:log|out(?:put)?|save|ckpt|checkpoint).?(?:s$|dir|root)"
    r"|(?:run|job|exp(?:eriment)?|project|display|wandb|mlflow|metadata|version).{0,2}(?:name|group|tags?|notes?)\b"
    r"|\bexperiment$|(?:^|[.: _-])(?:out|logs?|output|error|comment|account|priority|mail\S*)$|^--time$"
    r"|WANDB|MLFLOW|COMET|\bprint|verbos|log(?:ging)?.{0,2}(?:every|interval|steps|freq|level)|\bEXP_|_NAME$",
    re.I,
)
"""Other in each run, and hardly ever why it fails."""
_LONG_NUMBER = re.compile(r"\d{4,}")
"""The number of a job or a day within a name or path."""


class Stated(Protocol):
    @property
    def values(self) -> tuple[str, ...]: ...
    @property
    def source(self) -> str: ...
    @property
    def line(self) -> int | None: ...
    @property
    def part(self) -> str: ...


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
    failed_on: frozenset[str] = frozenset()
    """Hosts of the ranks that failed first."""
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
    failure = _Failure(bad) if bad.failure else None
    effects = [] if failure else _effects(changes)
    ranked = [_ranked(change, failure, effects) for change in changes]
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
        gone, come = ([host for host in a.hosts if host not in {*b.hosts}] for a, b in ((ok, bad), (bad, ok)))
        yield Change("hosts", "hosts", _few(gone, ok.hosts), _few(come, bad.hosts))


def _few(apart: Sequence[str], among: Sequence[str]) -> str:
    """Those that only this run has; the others are the same."""
    more = f" and {len(apart) - _SHOWN_HOSTS} more" if len(apart) > _SHOWN_HOSTS else ""
    same = len(among) - len(apart)
    return (
        f"{', '.join(apart[:_SHOWN_HOSTS])}{more}{f' beside {same} others' if apart and same else ''}" or "the others"
    )


def _stated(ok: Side, bad: Side) -> Iterator[Change]:
    parts = [Counter(_part(*one) for one in side.stated.items()) for side in (ok, bad)]
    for kind, key in dict.fromkeys([*ok.stated, *bad.stated]):
        one, two = ok.stated.get((kind, key)), bad.stated.get((kind, key))
        if kind == "warning":
            if one is None and two is not None:
                yield Change(kind, key, None, two.values[0], at_bad=_place(two))
        elif kind == "pace":
            yield from _pace(key, one, two)
        elif one is not None and two is not None:
            if set(one.values) != set(two.values) and not (kind == "version" and _as_precise(one, two)):
                yield Change(kind, key, _joined(one), _joined(two), 0.0, "", _place(one), _place(two))
        elif kind not in ("statement", "hosts", "code") and _told_by_both(parts, kind, key, one or two):
            yield Change(kind, key, _joined(one), _joined(two), 0.0, "", _place(one), _place(two))


def _as_precise(one: Stated, two: Stated) -> bool:
    """`2.19.3+cuda12.1` beside `2.19.3` is the same release."""
    whole, other = ([value.split("+", 1)[0] for value in stated.values] for stated in (one, two))
    return set(whole) == set(other) and bool({*one.values} & {*two.values})


def _part(name: tuple[str, str], stated: Stated | None) -> str:
    """In what it was said: a file of keys, a list, a dump, a command."""
    kind, key = name
    return f"{kind} {key.split(': ', 1)[0] if kind == 'config' else '' if stated is None else stated.part}"


def _told_by_both(parts: Sequence[Counter[str]], kind: str, key: str, stated: Stated | None) -> bool:
    """A run that broke off early, or has one file less, does not lack each single thing that the other has told."""
    fewer, more = sorted(part[_part((kind, key), stated)] for part in parts)
    return fewer > 0 and (2 * fewer >= more or kind == "launch")


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
    """By cause and by what a run shows without failing: of the rows that fit a change the first counts."""
    text = resources.files("paramedic.knowledge").joinpath("relevance.toml").read_text("utf-8")
    table = tomllib.loads(text)
    words = table.pop("patterns")
    return {
        cause: tuple((kind, re.compile(words.get(pattern, pattern), re.I), weight) for kind, pattern, weight in rows)
        for cause, rows in table.items()
    }


class _Failure:
    """What is to be explained, and the words of its evidence."""

    def __init__(self, bad: Side) -> None:
        finding = bad.failure
        events = [item.event for item in finding.evidence] if finding else []
        said = "\n".join(text for event in events for text in (event.text, *map(str, event.fields.get("frames", ()))))
        self.causes = finding.causes if finding else ()
        self.said = said[:40_000].lower()
        self.hosts = bad.failed_on


def _ranked(change: Change, failure: _Failure | None, effects: Sequence[str]) -> Change:
    if change.kind == "failure":
        return _with(change, 1.0, "what is to be explained")
    score, reasons = _BASE[change.kind], []
    if failure is not None:
        shares = {cause.id: cause.probability * _weight(cause.id, change) for cause in failure.causes}
        score += sum(shares.values())
        top = max(shares, key=shares.__getitem__, default="")
        if top and shares[top] >= 0.05:
            sure = next(cause.probability for cause in failure.causes if cause.id == top)
            reasons.append(f"can bring about {top.replace('-', ' ')} ({sure:.0%})")
        share, how = _named(change, failure.said)
        score += share
        reasons[:0] = [how]
        if change.kind == "hosts" and any(host in (change.bad or "") for host in failure.hosts):
            score += _FAILED_THERE
            reasons.insert(0, "what failed first, failed there")
    elif effects and (weight := max(_weight(effect, change) for effect in effects)):
        score += weight
        reasons.append(f"can be why {effects[0]}")
    if _VOLATILE.search(change.key) or _only_numbered(change):
        score *= 0.2
    if change.kind in ("pace", "warning", "statement") and not any(reasons):
        reasons.append(_REASONS.get(change.key) or _REASONS.get(change.kind, ""))
    return _with(change, min(score, 0.99), "; ".join(filter(None, reasons)))


EFFECTS = ("it takes another network", "fewer ranks take part", "it is slower")
"""What a run shows that did not fail, but is not like the other one: keys of `relevance.toml`, beside the causes."""


def _effects(changes: Sequence[Change]) -> list[str]:
    told = {change.key: change for change in changes if change.kind in ("pace", "world size", "statement")}
    network = told.get("network")
    shown = (
        network is not None and network.bad is not None,
        _less(told.get("world size")),
        _less(told.get("done a second")) or _less(told.get("seconds a step"), -1),
    )
    return [effect for effect, is_shown in zip(EFFECTS, shown, strict=True) if is_shown]


def _less(change: Change | None, sign: int = 1) -> bool:
    return change is not None and sign * _number(change.bad or "") < sign * _number(change.ok or "")


def _only_numbered(change: Change) -> bool:
    """`runs/lm-89871`, `runs/lm-90233`: but for the number of a job or a day the same."""
    before, after = change.ok or "", change.bad or ""
    return (
        bool(re.search("[A-Za-z]", before))
        and change.kind in ("config", "argument", "environment", "launch")
        and _LONG_NUMBER.sub("#", before) == _LONG_NUMBER.sub("#", after)
    )


def _with(change: Change, relevance: float, why: str) -> Change:
    return replace(change, relevance=round(relevance, 3), why=why)


def _weight(cause: str, change: Change) -> float:
    for kind, key, weight in _relevance().get(cause, ()):
        if kind == change.kind and key.search(change.key):
            return weight
    return 0.0


def _named(change: Change, said: str) -> tuple[float, str]:
    """How much it counts that the failure's evidence has the key as a word (`train_batch_size`, `transformers`, or the
    program's own frame), the new value, or a part of the key that is no everyday word."""
    if change.kind in ("warning", "statement", "pace", "hosts", "world size"):
        return 0.0, ""
    name = change.key.split(": ", 1)[-1] if change.kind == "config" else change.key
    key = re.split(r"[.:/\s]", name)[-1].lstrip("-").lower()
    if len(key) >= 4 and key not in _IN_EVERY_MESSAGE and _is_word(key, said):
        return (_NAMED_CODE if change.kind == "code" else _NAMED), "the failure's own message names it"
    value = (change.bad or "").lower()
    if len(value) >= 4 and not value.isalpha() and _is_word(value, said):
        return _NAMED_VALUE, "the failure's own message has its value"
    parts = [part for part in re.findall(r"[a-z]{3,}", key) if part not in _EVERYDAY and part in said]
    if change.kind != "code" and any(re.search(rf"(?<![a-z]){part}(?![a-z])", said) for part in parts):
        return _NAMED_PARTLY, "the failure's own message speaks of it"
    return 0.0, ""


_EVERYDAY = frozenset(
    re.findall(
        r"\w+",
        """
    all and attention auto backend base batch cache cfg check checkpoint class code collective config count cpu cuda
    data dataloader dataset default device dim dir dist distributed dtype enable enabled epoch epochs error eval file
    files first flag float for from global gpu gpus grad gradient group head heads hidden host input int interval iter
    iters key last layer layers learning len length level limit list load local log loss main mask max mean memory
    micro min mode model module name nccl net new node nodes none not num number old one optimizer option out output
    pad parallel param parameter parameters params path per pipeline port process rank ranks rate run samples save
    script seq sequence set shape size source split start state step steps string sum system tensor test text the time
    timeout tokens torch total train training true type update use value version warmup weight weights width with work
    worker workers world
    """,
    )
)


def _is_word(word: str, said: str) -> bool:
    """Of thousands of keys hardly any is named: no pattern is compiled for the others."""
    return word in said and re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", said) is not None

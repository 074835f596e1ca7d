"""What a project would start with, before it starts: its settings and its code, judged by rules.

A rule is a plain list of conditions on one section, or names a function of a room that `checks` lists.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

from paramedic.detect.answers import Failed, answer
from paramedic.detect.flow import Flow, flows
from paramedic.detect.program import Module, Program
from paramedic.garbage import no_collections
from paramedic.knowledge import Knowledge, Rule
from paramedic.knowledge.rules import Condition
from paramedic.model import Cause, Event, Evidence, Fact, Finding, Run, Severity
from paramedic.syntax import forget

UNKNOWN = "?"
_CONFIG = "config "


@dataclass(frozen=True)
class Part:
    """A section of a file: a DeepSpeed configuration, one command of a script, one document of a YAML file."""

    source: str
    kind: str
    number: int
    facts: Mapping[str, Fact]

    def get(self, key: str) -> Any:
        fact = self.facts.get(key)
        return None if fact is None else fact.value

    def number_of(self, key: str) -> int | None:
        """Whole numbers only; 5e8 is one."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
            return None
        return int(value)

    def has(self, key: str) -> bool:
        return key in self.facts

    def lacks(self, key: str) -> bool:
        """Surely: not where something in it could not be read."""
        parent = key.rsplit(".", 1)[0] + "." if "." in key else ""
        return key not in self.facts and UNKNOWN not in self.facts and f"{parent}{UNKNOWN}" not in self.facts

    def below(self, key: str) -> dict[str, Fact]:
        """Its settings by what follows the key, in the order of the file."""
        start, end = (bisect_left(self._sorted, (f"{key}{mark}",)) for mark in "./")  # "/" is what comes after "."
        there = sorted((place, name) for name, place in self._sorted[start:end])
        return {name[len(key) + 1 :]: self.facts[name] for _, name in there}

    @cached_property
    def _sorted(self) -> list[tuple[str, int]]:
        """All keys with their places: what begins alike stands together, and need not be looked for everywhere."""
        return sorted((name, place) for place, name in enumerate(self.facts))

    def quoted(self, *keys: str) -> tuple[Fact, ...]:
        return tuple(self.facts[key] for key in keys if key in self.facts)

    @cached_property
    def head(self) -> Fact:
        """Where the section begins, for a finding about what it lacks."""
        return min(self.facts.values(), key=lambda fact: fact.line or 0)


@dataclass(frozen=True)
class Script:
    """What `collect.code` saw in one Python file."""

    source: str
    events: tuple[Event, ...]
    names: frozenset[str]

    @cached_property
    def calls(self) -> tuple[Event, ...]:
        return tuple(event for event in self.events if event.kind == "call")

    @cached_property
    def by_name(self) -> Mapping[str, list[Event]]:
        """Calls by the last part of their name."""
        found: dict[str, list[Event]] = defaultdict(list)
        for call in self.calls:
            found[call.fields["name"].rsplit(".", 1)[-1]].append(call)
        return dict(found)

    def named(self, *names: str) -> Iterator[Event]:
        """In the order of the file."""
        there = [self.by_name[name] for name in names if name in self.by_name]
        return iter(there[0] if len(there) == 1 else sorted(chain(*there), key=lambda call: call.seq))


@dataclass(frozen=True)
class Hit:
    """What a rule's function found: facts and events to quote, the first of them is the place."""

    quoted: tuple[Fact | Event, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)
    severity: Severity | None = None
    asks: str = ""
    """Done only if an "argument" or the "environment" says so."""


_UNTOLD = 0.6
"""So sure at most of what stands under a condition of which nobody has told whether it holds: it may never be done."""


@dataclass(frozen=True)
class Setup:
    run: Run

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        grouped: dict[tuple[str, str, int], dict[str, Fact]] = defaultdict(dict)
        for fact in self.run.facts:
            if fact.name.startswith(_CONFIG):
                _, kind, number, key = fact.name.split(" ", 3)
                grouped[fact.source, kind, int(number)][key] = fact  # of equal keys the last one counts
        return tuple(Part(source, kind, number, facts) for (source, kind, number), facts in grouped.items())

    @cached_property
    def by_kind(self) -> Mapping[str, list[Part]]:
        found: dict[str, list[Part]] = defaultdict(list)
        for part in self.parts:
            found[part.kind].append(part)
        return found

    def of(self, *kinds: str) -> Iterator[Part]:
        for kind in kinds:
            yield from self.by_kind.get(kind, ())

    @cached_property
    def scripts(self) -> tuple[Script, ...]:
        grouped: dict[str, list[Event]] = defaultdict(list)
        for event in self.run.events:
            if event.kind in ("call", "jump", "variable", "assigned", "script"):
                grouped[event.source].append(event)
        return tuple(_script(source, events) for source, events in grouped.items())

    @cached_property
    def flows(self) -> list[Flow]:
        """What each training program does, in order."""
        return flows(Program(self.events("program")))

    @cached_property
    def files(self) -> list[tuple[Flow, Module]]:
        """Those of all programs, with the first program that each takes part in."""
        first: dict[Module, Flow] = {}
        for flow in self.flows:
            for module in flow.nodes:
                first.setdefault(module, flow)
        return [(flow, module) for module, flow in first.items()]

    @cached_property
    def by_call(self) -> Mapping[str, list[Flow]]:
        """Programs by what they call."""
        found: dict[str, list[Flow]] = defaultdict(list)
        for flow in self.flows:
            for name in flow.by_name:
                found[name].append(flow)
        return dict(found)

    def calling(self, *names: str) -> Sequence[Flow]:
        """Programs with one of these calls; all programs where none is named."""
        if not names:
            return self.flows
        there = [self.by_call[name] for name in names if name in self.by_call]
        wanted = set(chain(*there))
        return there[0] if len(there) == 1 else [flow for flow in self.flows if flow in wanted]

    def events(self, kind: str) -> Iterator[Event]:
        return (event for event in self.run.events if event.kind == kind)


def _script(source: str, events: list[Event]) -> Script:
    names = frozenset(name for event in events if event.kind == "script" for name in event.fields["names"])
    return Script(source, tuple(events), names)


Check = Callable[[Setup], Iterable[Hit]]


def examine(run: Run, knowledge: Knowledge, checks: Mapping[str, Check], failed: Failed | None = None) -> list[Finding]:
    """Every finding, by file and line. Where `failed` is given, a rule that breaks is noted there."""
    with no_collections():  # trees and values by the ten thousand stay until the last rule has been asked
        found = sorted(_examined(Setup(run), knowledge, checks, failed), key=_place)
        forget()
        return found


def _examined(setup: Setup, knowledge: Knowledge, checks: Mapping[str, Check], failed: Failed | None) -> list[Finding]:
    found: list[Finding] = []
    for rule in knowledge.rules.values():
        if rule.when or rule.detector in checks:
            found += answer(rule, failed, _asked, rule, setup, checks)
    return found


def _asked(rule: Rule, setup: Setup, checks: Mapping[str, Check]) -> Iterator[Finding]:
    if rule.when:
        return (_finding(rule, hit) for hit in _declared(rule, setup))
    return (_hedged(_finding(rule, hit), hit, setup) for hit in checks[rule.detector or ""](setup))


def _place(finding: Finding) -> tuple[str, int, str]:
    event = finding.evidence[0].event
    return event.source, event.line or 0, finding.rule


# -- declared conditions -------------------------------------------------------------------------------------------


def _declared(rule: Rule, setup: Setup) -> Iterator[Hit]:
    for part in setup.of(*rule.config):
        if all(_holds(condition, part) for condition in rule.when):
            present = part.quoted(*(condition.key for condition in rule.when)) or (part.head,)
            values = {_field(c.key): part.get(c.key) for c in rule.when if part.has(c.key)}
            yield Hit(present, {**values, "section": part.number})


def _field(key: str) -> str:
    return re.sub(r"\W", "_", key.rsplit(".", 1)[-1])


def _holds(condition: Condition, part: Part) -> bool:
    if condition.present is not None:
        return part.has(condition.key) if condition.present else part.lacks(condition.key)
    value = part.get(condition.key)
    if value is None:
        return False
    if condition.equals:
        return any(_same(value, wanted) for wanted in condition.equals)
    if condition.differs:
        return not any(_same(value, wanted) for wanted in condition.differs) and value != "auto"
    if condition.like:
        return isinstance(value, str) and re.search(condition.like, value) is not None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return (condition.above is None or value > condition.above) and (condition.below is None or value < condition.below)


def _same(value: Any, wanted: Any) -> bool:
    """1 is not true; texts are compared without regard to case."""
    if isinstance(value, bool) is not isinstance(wanted, bool):
        return False
    if isinstance(value, str) and isinstance(wanted, str):
        return value.lower() == wanted.lower()
    return bool(value == wanted)


# -- findings ------------------------------------------------------------------------------------------------------


def _finding(rule: Rule, hit: Hit) -> Finding:
    evidence = tuple(Evidence(_event(item)) for item in hit.quoted)
    fields = {name: shown(value) for name, value in (_where(hit) | dict(hit.fields)).items()}
    fields["file"] = evidence[0].event.source
    return Finding(
        rule=rule.id,
        symptom=rule.symptom,
        severity=hit.severity or rule.severity,
        scope="job",
        ranks=(),
        hosts=(),
        confidence=rule.confidence,
        summary=_filled(rule.summary, fields),
        evidence=evidence,
        causes=_causes(rule),
        fields=fields,
    )


def _hedged(one: Finding, hit: Hit, setup: Setup) -> Finding:
    """What is done only if somebody outside says so is no error yet. A command that is known tells the arguments."""
    asks = hit.asks or one.evidence[0].event.fields.get("asks")
    if not asks or (asks == "argument" and any(source.kind == "command" for source in setup.run.sources)):
        return one
    severity: Severity = "warning" if one.severity == "error" else one.severity
    return replace(one, confidence=min(one.confidence, _UNTOLD), severity=severity)


def _where(hit: Hit) -> dict[str, Any]:
    """Which section of the file a fix has to look at."""
    first = hit.quoted[0]
    if isinstance(first, Event) or not first.name.startswith(_CONFIG):
        return {}
    _, kind, number, _ = first.name.split(" ", 3)
    return {"section": int(number), "part": kind}


def _event(item: Fact | Event) -> Event:
    if isinstance(item, Event):
        return item
    equals = "" if item.value in (None, "") or item.name.startswith(f"{_CONFIG}requirements") else " = "
    text = _key(item) + equals + (shown(item.value) if item.value is not None else "")
    return Event(item.source, item.line or 0, "setting", text, item.line)


def _key(fact: Fact) -> str:
    return fact.name.split(" ", 3)[3] if fact.name.startswith(_CONFIG) else fact.name


def shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _causes(rule: Rule) -> tuple[Cause, ...]:
    total = max(1.0, sum(rule.causes.values()))
    return tuple(Cause(id, weight / total) for id, weight in rule.causes.items())


def _filled(text: str, fields: Mapping[str, str]) -> str:
    """Plain replacement: what comes from a file is never a template."""
    return re.sub(r"\{(\w+)\}", lambda found: fields.get(found[1], found[0])[:200], text)

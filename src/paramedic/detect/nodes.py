"""Facts by node, and findings on facts. What several nodes have alike is one finding with all their names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from packaging.version import InvalidVersion, Version

from paramedic.detect.once import once
from paramedic.knowledge import Rule
from paramedic.model import Event, Evidence, Fact, Finding, Run, Severity

MOST_TEXT = 400


@dataclass(frozen=True)
class Node:
    """One node's facts by name."""

    host: str
    facts: Mapping[str, Fact]

    def get(self, name: str) -> Any:
        fact = self.facts.get(name)
        return None if fact is None else fact.value

    def number(self, name: str) -> float | None:
        value = self.get(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def text(self, name: str) -> str | None:
        value = self.get(name)
        return None if value in (None, "None") else str(value)

    def version(self, name: str) -> Version | None:
        """Of a package, or of any other fact that holds one."""
        return parsed(self.get(name))

    def below(self, prefix: str) -> Iterator[tuple[str, Fact]]:
        """`package torch` is ("torch", the fact) below "package"."""
        start = prefix + " "
        for name, fact in self.facts.items():
            if name.startswith(start):
                yield name[len(start) :], fact

    def packages(self) -> dict[str, Version]:
        found = {name: parsed(fact.value) for name, fact in self.below("package")}
        return {name: version for name, version in found.items() if version is not None}


def parsed(value: Any) -> Version | None:
    try:
        return None if value is None else Version(str(value))
    except InvalidVersion:
        return None


@once
def nodes(run: Run) -> tuple[Node, ...]:
    """Facts without a host, as those of a checkpoint, are of no node."""
    by_host: dict[str, dict[str, Fact]] = {}
    for fact in run.facts:
        if fact.host is not None:
            by_host.setdefault(fact.host, {})[fact.name] = fact
    return tuple(Node(host, facts) for host, facts in by_host.items())


def on_facts(
    rule: Rule,
    facts: Iterable[Fact],
    fields: Mapping[str, str] | None = None,
    severity: Severity | None = None,
    said: str | None = None,
) -> Finding:
    """A finding whose evidence are facts; `said` stands for their own words."""
    events = [_event(number, fact, said) for number, fact in enumerate(facts)]
    hosts = tuple(dict.fromkeys(event.host for event in events if event.host))
    return Finding(
        rule=rule.id,
        symptom=rule.symptom,
        severity=severity or rule.severity,
        scope="host" if hosts else "job",
        ranks=(),
        hosts=hosts,
        confidence=rule.confidence,
        summary=rule.title,
        evidence=tuple(Evidence(event) for event in events),
        consequence=rule.consequence,
        fields=fields or {},
    )


def _event(number: int, fact: Fact, said: str | None) -> Event:
    text = said if said and number == 0 else f"{fact.name} = {fact.value}"
    return Event(fact.source, number, "fact", text[:MOST_TEXT], line=fact.line, host=fact.host)


def alike(found: Iterable[Finding]) -> Iterator[Finding]:
    """Equal but for the host: one finding."""
    groups: dict[tuple[str, str, tuple[tuple[str, str], ...]], Finding] = {}
    for one in found:
        key = (one.rule, one.severity, tuple(sorted(one.fields.items())))
        known = groups.get(key)
        groups[key] = one if known is None else replace(known, hosts=tuple(dict.fromkeys((*known.hosts, *one.hosts))))
    yield from groups.values()


def size(number: float) -> str:
    """`64 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:.0f} {unit}" if number >= 10 or unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"

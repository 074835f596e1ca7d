"""A checkpoint against itself and against the job that is to resume from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from paramedic.detect.nodes import on_facts, size
from paramedic.knowledge import Rule
from paramedic.model import Fact, Finding, Run


def _below(run: Run, prefix: str) -> Iterator[tuple[str, Fact]]:
    start = f"checkpoint {prefix} "
    for fact in run.facts:
        if fact.name.startswith(start):
            yield fact.name[len(start) :], fact


def _one(run: Run, name: str) -> Fact | None:
    return next((fact for fact in run.facts if fact.name == name), None)


def _number(fact: Fact | None) -> int | None:
    return fact.value if fact and isinstance(fact.value, int) and not isinstance(fact.value, bool) else None


def missing(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    absent = list(_below(run, "missing"))
    if absent:
        name, first = absent[0]
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        fields = {"part": name + more, "by": str(first.value)}
        yield on_facts(rule, [fact for _, fact in absent[:6]], fields)


def damaged(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for name, fact in _below(run, "damaged"):
        yield on_facts(rule, [fact], {"part": name, "why": str(fact.value)}, said=f"{name} {fact.value}")


def pointer(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    fact = _one(run, "checkpoint pointer")
    said: Any = fact.value if fact else None
    if fact and isinstance(said, dict):
        yield on_facts(rule, [fact], {"file": str(said.get("file")), "says": str(said.get("says"))})


def unknown(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    fact = _one(run, "checkpoint kind")
    if fact and fact.value == "unknown":
        yield on_facts(rule, [fact], {"folder": fact.source})


def ranks(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """ZeRO's shards are of one data-parallel size; what can be resharded is only noted."""
    saved, wanted = _one(run, "checkpoint ranks"), _one(run, "wanted ranks")
    before, now = _number(saved), _number(wanted)
    if saved is None or wanted is None or before is None or now is None or before == now:
        return
    fixed = _one(run, "checkpoint fixed to its ranks") is not None
    kind = _one(run, "checkpoint kind")
    fields = {"saved": str(before), "wanted": str(now), "kind": str(kind.value if kind else "?")}
    yield on_facts(rule, [saved, wanted], fields, severity="error" if fixed else "info")


def degrees(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Megatron's own files are cut by tensor and pipeline degree; its distributed ones can be loaded otherwise."""
    if any(fact.name == "checkpoint can be resharded" for fact in run.facts):
        return
    for name in ("tensor parallel", "pipeline parallel"):
        saved, wanted = _one(run, f"checkpoint {name}"), _one(run, f"wanted {name}")
        if saved and wanted and _number(saved) != _number(wanted):
            fields = {"what": name, "saved": str(saved.value), "wanted": str(wanted.value)}
            yield on_facts(rule, [saved, wanted], fields)


def runs_code(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for name, fact in _below(run, "calls"):
        named = ", ".join(map(str, fact.value[:4])) if isinstance(fact.value, list) else str(fact.value)
        yield on_facts(rule, [fact], {"part": name, "names": named})


def small(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for name, fact in _below(run, "small"):
        mine, usual = fact.value if isinstance(fact.value, list) and len(fact.value) == 2 else (0, 0)
        yield on_facts(rule, [fact], {"part": name, "size": size(mine), "usual": size(usual)})


def steps(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    counts = list(_below(run, "count"))
    values = {fact.value for _, fact in counts}
    if len(values) > 1:
        odd = [fact for _, fact in counts if fact.value != max(values, key=[f.value for _, f in counts].count)]
        fields = {"steps": ", ".join(map(str, sorted(values))), "part": odd[0].name.split(" ", 2)[-1]}
        yield on_facts(rule, odd, fields)

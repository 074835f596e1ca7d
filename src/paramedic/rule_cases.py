"""A rule file is its own test: its fenced cases, run as `diagnose` would run them."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paramedic.collect import collect
from paramedic.detect import detect, detect_facts
from paramedic.knowledge import Case, Knowledge, Rule
from paramedic.model import Fact, Finding, Run, Source
from paramedic.pipeline import compile_prefilter

_FILE = re.compile(r"^==> ((?:[\w-][\w.-]*/)*[\w-][\w.-]*) <==\n", re.M | re.A)


@dataclass(frozen=True, slots=True)
class Failure:
    """`case` counts from 1 in its file; 0 where the file itself lacks something."""

    rule: str
    file: str
    case: int
    problem: str


def failures(rules: Iterable[Rule], knowledge: Knowledge) -> Iterator[Failure]:
    """What each rule's own cases find wrong. All rules of `knowledge` look at each case, as they do at a log."""
    prefilter = compile_prefilter(knowledge)
    with tempfile.TemporaryDirectory(prefix="paramedic-") as folder:
        for rule in rules:
            try:
                cases = list(rule.cases())
            except ValueError:
                yield Failure(rule.id, rule.path, 0, "a case has an option that is not written like rank=2")
                continue
            for expect in sorted({"fires", "silent"} - {case.expect for case in cases}):
                yield Failure(rule.id, rule.path, 0, f"has no case `log {expect}`")
            for number, case in enumerate(cases, 1):
                if case.kind == "facts":
                    found = detect_facts(_with_facts(case), knowledge)
                else:
                    with tempfile.TemporaryDirectory(dir=folder) as place:
                        run = collect([_laid_out(case, Path(place))], prefilter)
                    found = detect(run, knowledge, prefilter)
                if problem := _problem(rule, case, found):
                    yield Failure(rule.id, rule.path, number, f"`{case.kind} {case.expect}` {problem}")


def _with_facts(case: Case) -> Run:
    """`package torch = 2.13.0`, one a line; `@node-2 ` before it names the node; a value is JSON where it can be."""
    facts = []
    for line in filter(None, map(str.strip, case.text.split("\n"))):
        node, rest = line[1:].split(" ", 1) if line.startswith("@") else ("node-1", line)
        name, _, value = rest.partition(" = ")
        facts.append(Fact(name.strip(), _value(value.strip()), "case", host=node))
    return Run("case", (Source("case", "probe"),), facts=tuple(facts))


def _value(text: str) -> Any:
    try:
        return json.loads(text) if not re.fullmatch(r"[\d.]+\d", text) or text.isdigit() else text
    except ValueError:
        return text


def _laid_out(case: Case, folder: Path) -> str:
    """A log is one file. A folder has several, each below a line `==> ranks/rank-0.watch.json <==`."""
    if case.kind != "folder":
        log = folder / "case.txt"
        log.write_text(case.text, "utf-8")
        return str(log)
    _, *parts = _FILE.split(case.text)
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return str(folder)


def _problem(rule: Rule, case: Case, found: list[Finding]) -> str:
    fired = [finding for finding in found if finding.rule == rule.id]
    if case.expect == "silent":
        return "does fire" if fired else ""
    if case.expect != "fires":
        return ""
    if not fired:
        others = ", ".join(sorted({finding.rule for finding in found}))
        return f"does not fire; found instead: {others or 'nothing'}"
    ranks = sorted({rank for finding in fired for rank in finding.ranks})
    wanted = case.options.get("rank")
    if wanted is None or wanted in map(str, ranks):
        return ""
    return f"fires on {', '.join(f'rank {rank}' for rank in ranks) or 'no rank'}, not on rank {wanted}"

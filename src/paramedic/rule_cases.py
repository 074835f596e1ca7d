"""A rule file is its own test: its fenced cases, run as `diagnose`, `check` and `fix` would run them."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paramedic import fix, patch
from paramedic.collect.files import collect
from paramedic.collect.project import read_project
from paramedic.detect import detect, detect_facts
from paramedic.detect.checks import CHECKS
from paramedic.detect.setup import examine
from paramedic.knowledge import Case, Knowledge, Rule
from paramedic.knowledge.openings import never_tried
from paramedic.model import Fact, Finding, Run, Source
from paramedic.pipeline import compile_prefilter
from paramedic.prefilter import Prefilter

_BEFORE = ("config", "code")
"""Kinds of cases that `check` examines, before anything is started."""
_FILE = re.compile(r"^==> ((?:[\w-][\w.-]*/)*[\w-][\w.-]*) <==\n", re.M | re.A)


@dataclass(frozen=True, slots=True)
class Failure:
    """`case` counts from 1 in its file; 0 where the file itself lacks something."""

    rule: str
    file: str
    case: int
    problem: str


def failures(
    rules: Iterable[Rule], knowledge: Knowledge, compiled: Prefilter | None = None
) -> Iterator[Failure]:  # fmt: skip
    """What each rule's own cases find wrong. All rules of `knowledge` look at each case, as they do at a log."""
    prefilter = compiled or compile_prefilter(knowledge)
    with tempfile.TemporaryDirectory(prefix="paramedic-") as folder:
        for rule in rules:
            try:
                cases = list(rule.cases())
            except ValueError:
                yield Failure(rule.id, rule.path, 0, "a case has an option that is not written like rank=2")
                continue
            yield from _lacking(rule, cases)
            for pattern in never_tried(rule.match, rule.keywords):
                yield Failure(
                    rule.id, rule.path, 0, f"is never tried, for want of a keyword that can be in it: {pattern}"
                )
            for number, case in enumerate(cases, 1):
                with tempfile.TemporaryDirectory(dir=folder) as place:
                    if case.kind in _BEFORE:
                        problem = _checked(rule, case, cases[: number - 1], knowledge, Path(place))
                    elif case.kind == "facts":
                        problem = _problem(rule, case, detect_facts(_with_facts(case), knowledge))
                    else:
                        run = collect([_laid_out(case, Path(place))], prefilter)
                        problem = _problem(rule, case, detect(run, knowledge, prefilter))
                if problem:
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


def _lacking(rule: Rule, cases: list[Case]) -> Iterator[Failure]:
    before = [case.kind for case in cases if case.kind in _BEFORE]
    wanted, kind = ({"bad", "good"}, before[0]) if before else ({"fires", "silent"}, "log")
    for expect in sorted(wanted - {case.expect for case in cases}):
        yield Failure(rule.id, rule.path, 0, f"has no case `{kind} {expect}`")


def _checked(rule: Rule, case: Case, earlier: list[Case], knowledge: Knowledge, folder: Path) -> str:
    """A bad project has the finding, a good and a fixed one have not; the fix makes the bad one the fixed one."""
    target = _laid_out(case, folder)
    fired = [finding for finding in examine(read_project(target), knowledge, CHECKS) if finding.rule == rule.id]
    if case.expect == "bad":
        return "" if fired else "is not found"
    if fired:
        return f"is found: {fired[0].summary}"
    return _repaired(rule, case, earlier[-1], knowledge, folder) if case.expect == "fixed" and earlier else ""


def _repaired(rule: Rule, case: Case, bad: Case, knowledge: Knowledge, folder: Path) -> str:
    _laid_out(bad, folder)
    found = [f for f in examine(read_project(str(folder)), knowledge, CHECKS) if f.rule == rule.id]
    wanted = [
        patch.Wanted(rule.id, finding.evidence[0].event.source, first.action, first.title)
        for finding in found
        for first in fix.fixes_for(finding, knowledge)[:1]
    ]
    changed, refused = patch.plan(folder, wanted)
    if refused or not changed:
        return f"the fix cannot be made: {refused[0].why if refused else 'it asks for no change'}"
    name = case.options.get("file", changed[0].file)
    got = next((one.after.decode("utf-8") for one in changed if one.file == name), "")
    return "" if got == case.text else f"the fix makes another text: {got!r}"


def _laid_out(case: Case, folder: Path) -> str:
    """A log is one file. A folder has several, each below a line `==> ranks/rank-0.watch.json <==`."""
    if "file" in case.options:
        path = folder / case.options["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(case.text, "utf-8")
        return str(folder)
    if case.kind == "log":
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

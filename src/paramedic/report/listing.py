"""Findings of a check, by file and line, as a linter shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from paramedic.model import SEVERITIES, Finding, Report
from paramedic.report.action import copyable
from paramedic.report.escape import crop, one_line
from paramedic.report.words import count, name

if TYPE_CHECKING:
    from rich.console import Console

_COLOURS = {"error": "bold red", "warning": "bold yellow", "info": "bold cyan"}
_BY_FIX = {"safe": " (`paramedic fix --apply` does it)", "unsafe": " (`paramedic fix --unsafe` shows it)"}
_SHOWN = 40
_ASIDE = 5


def render(report: Report, console: Console, verbose: bool = False) -> None:
    for line in lines(report, verbose):
        console.print(line, soft_wrap=True)


def lines(report: Report, verbose: bool) -> Iterator[Text]:
    worst = sorted(report.findings, key=lambda f: -SEVERITIES.index(f.severity))
    shown = set(map(id, worst if verbose else worst[:_SHOWN]))
    for finding in report.findings:
        if id(finding) in shown:
            yield from _finding(finding, verbose)
    if len(report.findings) > len(shown):
        yield Text(f"and {len(report.findings) - len(shown):,} more, -v shows them", style="dim")
    yield from _left_out(report, verbose)
    yield from _summary(report)


def _finding(finding: Finding, verbose: bool) -> Iterator[Text]:
    event = finding.evidence[0].event
    place = one_line(event.source) + (f":{event.line}" if event.line else "")
    colour = _COLOURS[finding.severity]
    yield Text.assemble(
        (place, "bold"), " ", (finding.severity, colour), f" {finding.rule} {one_line(finding.summary)}"
    )
    for evidence in finding.evidence if verbose else finding.evidence[:1]:
        more = evidence.event
        where = "" if more is event else f"{one_line(more.source)}:{more.line}  "
        yield Text(f"    {where}{crop(one_line(more.text), 160)}", style="dim")
    yield Text.assemble(("    prevents: ", "dim"), name(finding.symptom))
    for fix in finding.fixes if verbose else finding.fixes[:1]:
        command = _BY_FIX.get(fix.safety, "") if "edit" in fix.action else ""
        yield Text.assemble(("    do this: ", "dim"), one_line(fix.title), (command, "dim"))
        if verbose:
            yield from (Text(f"      {line}", style="green") for line in filter(None, copyable(fix.action).split("\n")))


def _left_out(report: Report, verbose: bool) -> Iterator[Text]:
    if report.skipped:
        yield Text("Not examined", style="bold")
        for skipped in report.skipped if verbose else report.skipped[:_ASIDE]:
            yield Text(f"  - {one_line(skipped.what)}: {one_line(skipped.why)}")
        if not verbose and len(report.skipped) > _ASIDE:
            yield Text(f"  and {len(report.skipped) - _ASIDE:,} more, -v shows them", style="dim")
    if report.suppressed and verbose:
        yield Text("Set aside", style="bold")
        yield from (Text(f"  - {left.rule}  {one_line(left.why)}") for left in report.suppressed)


def _summary(report: Report) -> Iterator[Text]:
    kinds = Counter(finding.severity for finding in report.findings)
    said = ", ".join(
        count(kinds[s], s) if s != "info" else f"{kinds[s]} info" for s in reversed(SEVERITIES) if kinds[s]
    )
    nodes = sum(source.kind == "probe" for source in report.run.sources)
    files = len(report.run.sources) - nodes
    examined = " and ".join(count(number, what) for number, what in ((files, "file"), (nodes, "node")) if number)
    examined += " examined"
    aside = f", {len(report.suppressed)} set aside" if report.suppressed else ""
    if not report.run.sources:
        yield Text("Nothing here is a configuration or a program that Paramedic knows.", style="bold")
    elif report.findings:
        yield Text(f"{said} ({examined}{aside})", style="bold")
        yield Text(f"learn more: paramedic explain {report.findings[0].rule}", style="dim")
    else:
        yield Text(f"Nothing found ({examined}{aside}).", style="bold")

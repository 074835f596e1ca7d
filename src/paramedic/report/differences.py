"""What changed between two runs, for people and for machines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from paramedic.model import Finding, Skipped
from paramedic.report import document, words
from paramedic.report.escape import crop, encodable, one_line, printable
from paramedic.report.json import dumps

if TYPE_CHECKING:
    from rich.console import Console

    from paramedic.differences import Change, Side

SCHEMA_VERSION = 1
SHOWN = 20
SHOWN_VERBOSE = 300
NARROW = 110
"""Below so many columns the table would break words."""
_VALUE = 44
_EXPLAINS = 0.35
_SHOWN_ONLY = ("failure", "pace", "warning", "statement")
_INDENT = 6


def headlines(ok: Side, bad: Side, changes: tuple[Change, ...]) -> list[str]:
    """One line for each run, and one for the count."""
    lines = [f"{name:<4} {_verdict(side)}" for name, side in (("ok", ok), ("bad", bad))]
    if ok.failure and not bad.failure:
        lines.append("The run named first failed and the second did not: the one that worked is to be named first.")
    if not changes:
        return [*lines, "No differences in what both runs have on record."]
    most = ", the most relevant to the failure first" if bad.failure else ""
    return [*lines, f"{words.count(len(changes), 'difference')}{most}", *_best(bad, changes)]


def explains(changes: tuple[Change, ...]) -> Change | None:
    """What explains the failure best, if anything does."""
    made = next((change for change in changes if change.kind not in _SHOWN_ONLY), None)
    return made if made is not None and made.relevance >= _EXPLAINS else None


def _best(bad: Side, changes: tuple[Change, ...]) -> list[str]:
    """That nothing explains it is worth as much: then it is the machines, or chance."""
    if (best := explains(changes)) is not None:
        what, ok, now = _cells(best, verbose=True)
        return [f"Most likely it is the {best.kind}{f' {what}' if what else ''}: {ok} → {now}"]
    return ["Nothing that differs is known to bring this about."] if bad.failure else []


def _verdict(side: Side) -> str:
    finding, run = side.failure, side.report.run
    if finding is None:
        return f"no failure found ({words.examined(run)})"
    parts = (words.name(finding.symptom), words.where(finding), f"{words.percent(finding.confidence)} sure")
    return f"{words.name(finding.stage)} › {' · '.join(parts)} ({words.examined(run)})"


def table(changes: tuple[Change, ...], verbose: bool) -> Table:
    rows = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "kind", "what", "ok", "bad", "why"):
        rows.add_column(column, no_wrap=column in ("", "kind"), overflow="fold")
    for change in changes[: SHOWN_VERBOSE if verbose else SHOWN]:
        cells = (bar(change.relevance), change.kind, *_cells(change, verbose), one_line(change.why))
        rows.add_row(*(Text(cell) for cell in cells))
    return rows


def listed(changes: tuple[Change, ...], verbose: bool, console: Console) -> Iterator[Text]:
    """The same where six columns have no room: each change below the other, with its reason in a row of its own."""
    for change in changes[: SHOWN_VERBOSE if verbose else SHOWN]:
        what, ok, bad = _cells(change, verbose)
        said = f"{change.kind}{f' {what}' if what else ''}: {ok} → {bad}"
        lines = [part for row in (said, one_line(change.why)) if row for part in _wrapped(row, console)]
        for number, line in enumerate(lines):
            yield Text(f"{'' if number else bar(change.relevance):<{_INDENT}}").append_text(line)


def _wrapped(row: str, console: Console) -> Iterator[Text]:
    for part in Text(row).wrap(console, max(console.width - _INDENT, 20), overflow="fold"):
        part.rstrip()
        yield part


def _cells(change: Change, verbose: bool) -> tuple[str, str, str]:
    """What changed, before and after."""
    unnamed = change.kind in ("warning", "statement") or change.key == change.kind
    ok, bad = (_cell(value, verbose) if value is not None else "-" for value in (change.ok, change.bad))
    return "" if unnamed else _cell(change.key, verbose), ok, bad


def _cell(text: str, verbose: bool) -> str:
    return one_line(text) if verbose else crop(one_line(text), _VALUE)


def bar(share: float, cells: int = 4) -> str:
    full, eighths = divmod(math.ceil(min(share, 1) * cells * 8), 8)
    return "█" * full + ("▏▎▍▌▋▊▉"[eighths - 1] if eighths else "")


def details(changes: tuple[Change, ...]) -> Iterator[str]:
    """The changed lines of programs, as `diff -u` shows them."""
    for change in changes:
        if change.detail:
            yield f"\n{one_line(change.key)}"
            yield from (f"  {printable(line)}" for line in change.detail)


def render_json(
    sides: tuple[Side, Side], changes: tuple[Change, ...], skipped: tuple[Skipped, ...], left_out: int
) -> str:
    return dumps(
        {
            "schema_version": SCHEMA_VERSION,
            "tool": {"name": "paramedic", "version": document.tool_version()},
            "ok": _side(sides[0]),
            "bad": _side(sides[1]),
            "differences": [_change(change) for change in changes],
            "left_out": left_out,
            "skipped": [{"what": encodable(s.what), "why": encodable(s.why)} for s in skipped],
        }
    )


def _side(side: Side) -> dict[str, Any]:
    run = side.report.run
    return {
        "run": {
            "id": encodable(run.id), "frameworks": [encodable(name) for name in run.frameworks],
            "world_size": side.world_size, "sources": len(run.sources),
        },
        "failure": None if side.failure is None else _failure(side.failure),
    }  # fmt: skip


def _failure(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule, "symptom": str(finding.symptom), "stage": finding.stage, "ranks": list(finding.ranks),
        "confidence": round(min(max(finding.confidence, 0.0), 1.0), 3), "summary": encodable(finding.summary),
    }  # fmt: skip


def _change(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "key": encodable(change.key),
        "ok": None if change.ok is None else encodable(change.ok),
        "bad": None if change.bad is None else encodable(change.bad),
        "relevance": change.relevance,
        "why": encodable(change.why),
        "where": {
            name: None if place is None else {"source": encodable(place.source), "line": place.line}
            for name, place in (("ok", change.at_ok), ("bad", change.at_bad))
        },
    }

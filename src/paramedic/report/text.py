"""One screen for a tired person at night: what happened, why we think so, do this, learn more."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from paramedic.model import Cause, Evidence, Finding, Fix, Report
from paramedic.report import quote, words
from paramedic.report.action import copyable, label
from paramedic.report.escape import crop, one_line
from paramedic.report.known import Known

if TYPE_CHECKING:
    from rich.console import Console

    from paramedic.knowledge import Knowledge

CAUSES = 4
CASCADES = 3
OTHERS = 3
SKIPPED = 3
_ARROW = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
_COLOURS = {"error": "bold red", "warning": "bold yellow", "info": "bold cyan"}
_SAFETY = {
    "safe": "safe to apply",
    "unsafe": "changes behaviour, review it",
    "manual": "by hand",
}


def render(report: Report, console: Console, verbose: bool = False, *, knowledge: Knowledge | None = None) -> None:
    for block in blocks(report, console, verbose, knowledge=knowledge):
        console.print(block, soft_wrap=True)  # all is wrapped but commands, which are to be copied whole


def blocks(
    report: Report,
    console: Console,
    verbose: bool = False,
    *,
    width: int | None = None,
    knowledge: Knowledge | None = None,
) -> Iterator[Text]:
    """What `render` prints; all Text, so nothing in it is markup. A given width is never exceeded."""
    screen = _Screen(console, width or console.width, width is None, verbose, Known.of(knowledge))
    yield from screen.verdict(report.verdict) if report.verdict else screen.nothing(report)
    if report.verdict:
        yield from screen.followed(report)
        yield from screen.also(words.others(report), "Also found")
    yield from screen.left_out(report)
    yield from screen.learn(report)


def brief(report: Report, console: Console) -> None:
    """Of a job that has ended well: the verdict alone, with its evidence and what to do."""
    screen = _Screen(console, console.width, True, False, Known.of(None))
    for block in screen.short(report):
        console.print(block, soft_wrap=True)


def foretold(report: Report, console: Console, verbose: bool = False) -> None:
    """Before the start: every finding with its evidence and first fix; none of them is a verdict."""
    screen = _Screen(console, console.width, True, verbose, Known.of(None))
    for block in screen.each(report):
        console.print(block, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class _Screen:
    console: Console
    width: int
    may_overflow: bool
    verbose: bool
    known: Known

    def text(self, *parts: str | tuple[str, str]) -> Text:
        """Parts with their styles; characters that this terminal cannot show become escapes."""
        line, encoding = Text(), self.console.encoding
        for part in parts:
            content, style = (part, "") if isinstance(part, str) else part
            line.append(content.encode(encoding, "backslashreplace").decode(encoding), style)
        return line

    def heading(self, title: str, aside: str = "") -> Iterator[Text]:
        yield Text()
        yield self.indented(self.text((title, "bold"), (f"  {aside}" if aside else "", "dim")), 0)

    def indented(self, line: Text, by: int = 2) -> Text:
        """Wrapped to the screen, with nothing trailing."""
        wrapped = line.wrap(self.console, max(self.width - by, 20), overflow="fold")
        for part in wrapped:
            part.rstrip()
        return Text("\n").join(Text(" " * by).append_text(part) for part in wrapped)

    def whole(self, line: Text, by: int = 4) -> Text:
        """Something to copy: the terminal may wrap it, we do not."""
        if not self.may_overflow:
            return self.indented(line, by)
        indented = Text(" " * by, no_wrap=True, overflow="ignore")
        return indented.append_text(line)

    def row(self, line: Text, by: int = 2) -> Text:
        """One line of the screen, cut where the screen ends unless all was asked for."""
        if not self.verbose and line.cell_len > self.width - by:
            line.truncate(self.width - by, overflow="ellipsis" if self.can("…") else "crop")
        line.rstrip()
        return self.indented(line, by)

    def brief(self, text: str) -> str:
        """A sentence that keeps the verdict on one screen."""
        return one_line(text) if self.verbose else crop(one_line(text), 400)

    def can(self, characters: str) -> bool:
        """Whether this terminal can show them."""
        try:
            characters.encode(self.console.encoding)
        except UnicodeEncodeError:
            return False
        return True

    def verdict(self, finding: Finding) -> Iterator[Text]:
        yield self.headline(finding)
        yield self.indented(self.text(self.brief(finding.summary)), 0)
        yield from self.evidence(finding)
        yield from self.causes(finding)
        yield from self.fixes(finding)

    def short(self, report: Report) -> Iterator[Text]:
        if report.verdict is None:
            return
        yield self.headline(report.verdict)
        yield self.indented(self.text(self.brief(report.verdict.summary)), 0)
        yield from self.evidence(report.verdict)
        yield from self.fixes(report.verdict)
        yield from self.learn(report)

    def headline(self, finding: Finding) -> Text:
        arrow, dot = (f" {_ARROW} ", " · ") if self.can(f"{_ARROW}·") else (" > ", " - ")
        symptom = (words.name(finding.symptom), _COLOURS[finding.severity])
        sure = f"{words.percent(finding.confidence)} sure"
        place = words.where(finding)
        return self.indented(self.text(words.name(finding.stage), arrow, symptom, dot, place, dot, (sure, "bold")), 0)

    def evidence(self, finding: Finding) -> Iterator[Text]:
        shown = finding.evidence if self.verbose else finding.evidence[:1]
        left = len(finding.evidence) - len(shown)
        for i, evidence in enumerate(shown):
            more = f" (and {left:,} more, -v shows them)" if left and i == 0 else ""
            yield from self.heading("Evidence", words.origin(evidence.event) + more)
            yield from self.quote(evidence)

    def quote(self, evidence: Evidence) -> Iterator[Text]:
        bar = "│ " if self.can("│") else "| "
        for content, style in self.quoted(evidence):
            shown = content if self.can("…") else content.replace("…", "~")
            yield self.text((f"  {bar}", "dim"), (shown, style))

    def quoted(self, evidence: Evidence) -> list[tuple[str, str]]:
        """What was said, and where, on a few rows; with -v all of it with its context."""
        width = self.width - 4
        if not self.verbose:
            return quote.short(evidence.event, width, self.console)
        around = [
            [(piece, "dim") for line in lines for piece in quote.folded(one_line(line), width, self.console)]
            for lines in (evidence.before, evidence.after)
        ]
        return around[0] + quote.whole(evidence.event, width, self.console) + around[1]

    def causes(self, finding: Finding) -> Iterator[Text]:
        if not finding.causes:
            return
        ordered = words.by_probability(finding.causes)
        shown = ordered if self.verbose else ordered[:CAUSES]
        column = max(len(words.name(cause.id)) for cause in (*shown, Cause("other or unknown", 0.0)))
        rows = [(words.name(c.id), c.probability, self.reason(c, self.width - column - 18)) for c in shown]
        rest = words.unknown(tuple(shown))
        if rest >= 0.005:
            rows.append(("other or unknown", rest, ""))
        yield from self.heading("Likely causes")
        for title, share, why in rows:
            bar = self.bar(share)
            aside = "" if self.verbose else why
            parts = (f"{words.percent(share):>5} ", (bar, "cyan"), f" {title:<{column}}  ", (aside, "dim"))
            yield self.row(self.text(*parts), 1)
            if self.verbose and why:
                yield self.indented(self.text((why, "dim")), 16)

    def reason(self, cause: Cause, room: int) -> str:
        """As much of it as the row holds: what is said last, the base rate, is let go first."""
        if self.verbose or not cause.why:
            return one_line(cause.why) or self.known.cause(cause.id)
        parts = one_line(cause.why).split("; ")
        usual = parts[-1].startswith("base rate ")
        while len(parts) > (0 if usual else 1) and cell_len("; ".join(parts)) > room:
            parts.pop()
        return "; ".join(parts)

    def bar(self, share: float, cells: int = 8) -> str:
        if not self.can("█▏"):
            return f"{'#' * round(share * cells):<{cells}}"
        full, eighths = divmod(math.ceil(min(share, 1) * cells * 8), 8)
        return f"{'█' * full + ('▏▎▍▌▋▊▉'[eighths - 1] if eighths else ''):<{cells}}"

    def fixes(self, finding: Finding) -> Iterator[Text]:
        if not finding.fixes:
            return
        first, *rest = finding.fixes
        yield from self.heading("Do this", _SAFETY[first.safety])
        yield from self.fix(first)
        for fix in rest if self.verbose else rest[:2]:
            if self.verbose:
                yield self.indented(self.text(("or: ", "dim"), one_line(fix.title)))
                yield from self.action(fix)
            else:
                title = crop(one_line(fix.title), 200)
                yield self.indented(self.text(("or: ", "dim"), f"{title} ({fix.safety})"))

    def fix(self, fix: Fix) -> Iterator[Text]:
        yield self.indented(self.text(self.brief(fix.title)))
        yield from self.action(fix)

    def action(self, fix: Fix) -> Iterator[Text]:
        hint, lines = fix.action.get("kind") == "code", copyable(fix.action)
        if lines:
            yield self.indented(self.text((f"{label(fix.action)}:", "dim")))
        for line in lines.split("\n") if lines else ():
            shown = self.text((line, "" if hint else "bold green"))
            yield self.indented(shown, 4) if hint else self.whole(shown)
        if fix.verify:
            yield self.indented(self.text(("then verify: ", "dim"), self.brief(fix.verify)))

    def followed(self, report: Report) -> Iterator[Text]:
        if not report.cascades:
            return
        shown = report.cascades if self.verbose else report.cascades[:CASCADES]
        yield from self.heading("What followed")
        for cascade in shown:
            yield self.row(self.text(words.followed(cascade)))
        yield from self.more(len(report.cascades) - len(shown))

    def also(self, findings: list[Finding], title: str) -> Iterator[Text]:
        if not findings:
            return
        shown = findings if self.verbose else findings[:OTHERS]
        yield from self.heading(title)
        for finding in shown:
            summary = f"{one_line(finding.summary)} ({words.where(finding)}, {words.percent(finding.confidence)})"
            parts = (
                (f"{finding.severity:<8}", _COLOURS[finding.severity]),
                f"{one_line(finding.rule)}  ",
                summary,
            )
            yield self.row(self.text(*parts))
        yield from self.more(len(findings) - len(shown))

    def each(self, report: Report) -> Iterator[Text]:
        findings = words.others(report)
        if not findings:
            what = "nothing that would keep the job from starting was found"
            yield self.text((f"Examined {words.count(len(report.run.sources), 'node')}: {what}.", "bold"))
        for number, finding in enumerate(findings):
            if number:
                yield Text()
            yield self.headline(finding)
            yield self.indented(self.text(f"{one_line(finding.rule)}: {self.brief(finding.summary)}"))
            for item in finding.evidence if self.verbose else finding.evidence[:2]:
                bar = "│ " if self.can("│") else "| "
                yield self.row(self.text((bar, "dim"), one_line(item.event.text)))
            for fix in finding.fixes if self.verbose else finding.fixes[:1]:
                how = (f" ({_SAFETY[fix.safety]})", "dim")
                yield self.indented(self.text(("do this: ", "dim"), one_line(fix.title), how))
                for line in filter(None, copyable(fix.action).split("\n")):
                    yield self.whole(self.text((line, "bold green")))
        yield from self.left_out(report)
        yield from self.learn(report)

    def nothing(self, report: Report) -> Iterator[Text]:
        """No verdict: what was examined, and the candidates with their evidence and first fix."""
        yield self.indented(self.text((f"No verdict: {words.no_verdict(report)}", "bold")), 0)
        yield self.indented(self.text(f"Examined: {words.examined(report.run)}."), 0)
        findings = words.others(report)
        detailed = len(findings) if self.verbose else OTHERS
        for finding in findings[:detailed]:
            yield Text()
            yield from self.candidate(finding)
        yield from self.also(findings[detailed:], "Also found")
        if step := words.next_step(report):
            yield Text()
            yield self.indented(self.text(("next: ", "dim"), step), 0)

    def candidate(self, finding: Finding) -> Iterator[Text]:
        yield self.headline(finding)
        yield self.indented(self.text(f"{one_line(finding.rule)}: {self.brief(finding.summary)}"))
        if finding.evidence:
            event = finding.evidence[0].event
            yield self.indented(self.text((words.origin(event), "dim")))
            yield self.row(self.text(("│ " if self.can("│") else "| ", "dim"), quote.headline(event)))
        for fix in finding.fixes[:1]:
            yield self.row(self.text(("do this: ", "dim"), one_line(fix.title)))
            if action := one_line(copyable(fix.action)):
                yield self.row(self.text(action), 4)

    def left_out(self, report: Report) -> Iterator[Text]:
        if report.skipped:
            yield from self.heading("Not examined")
            shown = report.skipped if self.verbose else report.skipped[:SKIPPED]
            for skipped in shown:
                yield self.indented(self.text(self.brief(f"- {skipped.what}: {skipped.why}")))
            yield from self.more(len(report.skipped) - len(shown))
        if report.suppressed:
            yield from self.heading("Set aside")
            reasons = list(dict.fromkeys(one_line(f"{left.rule}  {left.why}") for left in report.suppressed))
            listed = reasons if self.verbose else reasons[:3]
            yield from (self.indented(self.text(reason)) for reason in listed)
            yield from self.more(len(reasons) - len(listed))

    def more(self, left: int) -> Iterator[Text]:
        if left > 0:
            yield self.indented(self.text((f"and {left:,} more, -v shows them", "dim")))

    def learn(self, report: Report) -> Iterator[Text]:
        rule = report.verdict.rule if report.verdict else report.findings[0].rule if report.findings else None
        if rule:
            yield Text()
            yield self.text(("learn more: ", "dim"), f"paramedic explain {one_line(rule)}")

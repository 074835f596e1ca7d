"""The report as Markdown for a GitHub issue. Nothing quoted becomes a link, an image or a mention."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paramedic.model import Finding, Report
from paramedic.report import words
from paramedic.report.action import copyable, label
from paramedic.report.document import tool_version
from paramedic.report.escape import one_line, printable, shorten

QUOTES = 3
_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~$&])")


def markdown(report: Report) -> str:
    parts = [*(_verdict(report.verdict) if report.verdict else _none(report))]
    if report.cascades:
        parts.append("**What followed**")
        parts.append("\n".join(f"- {_inline(words.followed(cascade))}" for cascade in report.cascades))
    if left := words.others(report):
        listed = "\n".join(
            f"- {_inline(f.rule)} ({f.severity}, {words.percent(f.confidence)}): {_inline(f.summary)}"
            for f in left[:10]
        )
        parts += ["**Also found**", listed]
    if report.skipped:
        listed = "\n".join(f"- {_inline(skipped.what)}: {_inline(skipped.why)}" for skipped in report.skipped[:10])
        parts += ["**Not examined**", listed]
    parts.append(f"**Examined** {_inline(words.examined(report.run))}, run {_code(report.run.id)}")
    parts.append(f"_Diagnosed by Paramedic {tool_version()}._")
    return "\n\n".join(parts) + "\n"


def _none(report: Report) -> Iterator[str]:
    yield f"### No verdict: {_inline(words.no_verdict(report))}"


def _verdict(finding: Finding) -> Iterator[str]:
    yield f"### {_inline(words.name(finding.symptom).capitalize())} on {_inline(words.where(finding))}"
    yield _inline(finding.summary)
    stage, sure = _inline(words.name(finding.stage)), words.percent(finding.confidence)
    yield f"Stage: {stage}. {sure} sure. Rule {_code(finding.rule)}."
    for evidence in finding.evidence[:QUOTES]:
        yield f"**Evidence** {_code(words.origin(evidence.event))}"
        lines = (*evidence.before, evidence.event.text, *evidence.after)
        yield _fenced("\n".join(shorten(printable(line), 1000) for line in lines), "text")
    if finding.causes:
        yield "**Likely causes**"
        yield "\n".join(_cause(finding))
    for fix in finding.fixes[:1]:
        yield f"**Fix** ({fix.safety}): {_inline(fix.title)}"
        said = [f"Verify: {_inline(fix.verify)}"] if fix.verify else []
        if action := copyable(fix.action):
            yield _fenced(action, "sh" if fix.action.get("kind") in ("env", "package", "command") else "text")
            said.insert(0, f"{_inline(label(fix.action).capitalize())}.")
        if said:
            yield " ".join(said)


def _cause(finding: Finding) -> Iterator[str]:
    for cause in words.by_probability(finding.causes):
        why = f": {_inline(cause.why)}" if cause.why else ""
        yield f"- {words.percent(cause.probability)} {_inline(words.name(cause.id))}{why}"
    if (rest := words.unknown(finding.causes)) >= 0.005:
        yield f"- {words.percent(rest)} unknown"


def _inline(text: str) -> str:
    """Markup is escaped; mentions and bare addresses are broken, so that GitHub does not see them."""
    escaped = _SPECIAL.sub(r"\\\1", one_line(text)).replace("@", "@&#8203;")
    return escaped.replace("://", "&#58;//").replace("www.", "www&#46;")


def _code(text: str) -> str:
    text = one_line(text)
    ticks = "`" * (_longest_run(text) + 1)
    padding = " " if text.startswith("`") or text.endswith("`") or not text else ""
    return f"{ticks}{padding}{text}{padding}{ticks}"


def _fenced(text: str, language: str) -> str:
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)

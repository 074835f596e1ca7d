"""One self-contained HTML file: no network, no script but ours, and useful without any script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from paramedic.model import Evidence, Finding, Report
from paramedic.report import words
from paramedic.report.action import copyable, label
from paramedic.report.document import SCHEMA_VERSION, tool_version
from paramedic.report.escape import printable, shorten
from paramedic.report.issue import markdown
from paramedic.report.known import Known
from paramedic.report.timeline import KINDS, timeline

if TYPE_CHECKING:
    from paramedic.knowledge import Knowledge

MOST_QUOTES = 12
MOST_FINDINGS = 40
MOST_SOURCES = 120
MOST_LEFT_OUT = 60
LONGEST_LINE = 4000
SAFETY = {
    "safe": ("safe", "paramedic fix --apply may make this change"),
    "unsafe": ("unsafe", "changes what the job does: review it first"),
    "manual": ("by hand", "needs a person: code or a judgement"),
}


def render(report: Report, knowledge: Knowledge | None = None) -> str:
    style, script = _asset("report.css"), _asset("report.js")
    template = environment().get_template("report.html.j2")
    return template.render(
        policy=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        report=report,
        verdict=report.verdict,
        others=words.others(report),
        known=Known.of(knowledge),
        timeline=timeline(report),
        issue=markdown(report),
        version=tool_version(),
        schema_version=SCHEMA_VERSION,
    )


def framed(report: Report, height: int = 720) -> str:
    """The whole report as a fragment for a notebook: a frame that may run nothing and load nothing."""
    page = escape(render(report), quote=True)
    attributes = f'sandbox="" width="100%" height="{height}" frameborder="0" title="Paramedic report"'
    return f'<iframe {attributes} srcdoc="{page}"></iframe>'


@dataclass(frozen=True, slots=True)
class QuotedLine:
    number: int | None
    text: str
    role: str


def quoted(evidence: Evidence) -> list[QuotedLine]:
    """The quoted lines between those around them; only lines whose number is certain carry one."""
    event = evidence.event
    start = event.line
    lines = []
    for i, text in enumerate(evidence.before, -len(evidence.before)):
        lines.append(QuotedLine(None if start is None else start + i, text, "context"))
    frames = event.fields.get("frames")
    for frame in frames[-12:] if isinstance(frames, list | tuple) else ():
        lines.append(QuotedLine(None, str(frame), "frame"))
    hits = event.text.rstrip("\n").split("\n")
    for i, text in enumerate(hits):
        lines.append(QuotedLine(start if i == 0 else None, text, "hit"))
    for i, text in enumerate(evidence.after, 1):
        lines.append(QuotedLine(None if start is None or len(hits) > 1 else start + i, text, "context"))
    return [QuotedLine(line.number, shorten(printable(line.text), LONGEST_LINE), line.role) for line in lines]


def prose(text: str) -> list[list[tuple[bool, str]]]:
    """A rule's Markdown as paragraphs of (is code, text)."""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]
    return [[(i % 2 == 1, piece) for i, piece in enumerate(part.split("`")) if piece] for part in paragraphs]


def short_time(event: Any) -> str:
    """`10:41:07.120` of an ISO time; any other text as it is."""
    time = words.when(event) or ""
    return time[11:23] if event.utc_ns is not None and len(time) >= 23 else time


def top_cause(finding: Finding) -> Any:
    return words.by_probability(finding.causes)[0] if finding.causes else None


_FILTERS: tuple[Callable[..., Any], ...] = (
    *(
        words.name,
        words.percent,
        words.compact,
        words.where,
        words.on_ranks,
        words.count,
        words.place,
        words.when,
    ),
    *(words.unknown, words.by_probability, copyable, label, quoted, prose, short_time, top_cause, shorten),
)


def _finalize(value: Any) -> Any:
    """Everything the template prints passes here before it is escaped."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("paramedic.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {function.__name__: function for function in _FILTERS}
    made.globals |= {
        "KINDS": KINDS,
        "SAFETY": SAFETY,
        "MOST_QUOTES": MOST_QUOTES,
        "MOST_FINDINGS": MOST_FINDINGS,
        "MOST_SOURCES": MOST_SOURCES,
        "MOST_LEFT_OUT": MOST_LEFT_OUT,
        "examined": words.examined,
        "no_verdict": words.no_verdict,
        "next_step": words.next_step,
    }
    return made


def _policy(style: str, script: str) -> str:
    sources = f"style-src {digest(style)}; script-src {digest(script)}"
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _asset(name: str) -> str:
    return resources.files("paramedic.report").joinpath("assets", name).read_text("utf-8")

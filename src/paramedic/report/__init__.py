"""A Report for people and machines: text, JSON, SARIF, GitHub annotations, one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramedic.config import CHOICES
from paramedic.errors import ParamedicError
from paramedic.model import Report

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

    from paramedic.knowledge import Knowledge

FORMATS = CHOICES["format"]

__all__ = ["FORMATS", "ShownReport", "render"]


def render(
    report: Report,
    format: str,
    *,
    knowledge: Knowledge | None = None,
    width: int = 100,
    verbose: bool = False,
    brief: bool = False,
) -> str:
    """The whole report as a string without colours; for colours give a console to `report.text.render`.

    `brief`: of a text, the verdict with its evidence and what to do.
    """
    match format:
        case "text":
            return _text(report, width, verbose, knowledge, brief)
        case "json":
            from paramedic.report.json import render as render_json

            return render_json(report) + "\n"
        case "sarif":
            from paramedic.report.sarif import render as render_sarif

            return render_sarif(report, knowledge) + "\n"
        case "github":
            from paramedic.report.github import render as render_github

            return render_github(report)
        case "html":
            from paramedic.report.html import render as render_html

            return render_html(report, knowledge)
    raise ParamedicError(f"--format {format}: not one of {', '.join(FORMATS)}")


def _text(report: Report, width: int, verbose: bool, knowledge: Knowledge | None, brief: bool) -> str:
    from io import StringIO

    from rich.console import Console

    from paramedic.report import text

    page = StringIO()
    console = Console(file=page, width=width, color_system=None)
    if brief:
        text.brief(report, console)
    else:
        text.render(report, console, verbose, knowledge=knowledge)
    return page.getvalue()


@dataclass(frozen=True)
class ShownReport(Report):
    """A Report that shows itself: in Jupyter, in a rich console, as a dict, as JSON, as a file."""

    @classmethod
    def of(cls, report: Report) -> ShownReport:
        return cls(**{field.name: getattr(report, field.name) for field in fields(Report)})

    def __repr__(self) -> str:
        from paramedic.report.words import on_ranks, percent

        if self.verdict is None:
            return "<Report: no verdict>"
        where = f" on {on_ranks(self.verdict.ranks)}" if self.verdict.ranks else ""
        return f"<Report: {self.verdict.symptom}{where}, {percent(self.verdict.confidence)} sure>"

    def to_dict(self) -> dict[str, Any]:
        from paramedic.report.document import document

        return document(self)

    def to_json(self) -> str:
        return render(self, "json").rstrip("\n")

    def save_html(self, path: str | Path) -> Path:
        path = Path(path)
        path.write_text(render(self, "html"), "utf-8")
        return path

    def _repr_html_(self) -> str:
        from paramedic.report.html import framed

        return framed(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from paramedic.report.text import blocks

        yield from blocks(self, console, width=options.max_width)

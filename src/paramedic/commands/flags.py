"""The flags that verbs share, the config file behind them, and how a report leaves the program."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from paramedic.config import CHOICES, Config, load_config
from paramedic.errors import ParamedicError
from paramedic.model import SEVERITIES, Report

if TYPE_CHECKING:
    from paramedic.collect import Progress
    from paramedic.pipeline import Options


def add_report_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=CHOICES["format"], help="how to print the report (default: text)")
    group.add_argument("--output", metavar="FILE", help="write it there instead of to standard output")
    group.add_argument("--quiet", action="store_true", help="print nothing; the exit code is the answer")
    group.add_argument("-v", "--verbose", action="store_true", help="all evidence, all findings, all skipped files")
    group.add_argument("--fail-on", choices=CHOICES["fail_on"], help="lowest severity that gives exit code 1 (default: error)")
    add_rule_flags(parser)


def add_rule_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("rules")
    group.add_argument("--select", metavar="ID,…", help="only these rules, prefixes (MEM) or symptoms")
    group.add_argument("--ignore", metavar="ID,…", help="all but these")
    group.add_argument("--rules", metavar="DIR", action="append", help="a folder with your team's own rules; may be repeated")
    group.add_argument("--setting", choices=CHOICES["setting"], help="base rates of a lab or a production cluster (default: lab)")


def settings(args: argparse.Namespace) -> Config:
    """Flags over environment over file over defaults."""
    config = load_config(Path.cwd())
    given = {
        "format": getattr(args, "format", None),
        "fail_on": getattr(args, "fail_on", None),
        "setting": args.setting,
        "select": _split(args.select),
        "ignore": _split(args.ignore),
        "rules": tuple(args.rules) if args.rules else None,
    }
    return Config(**{k: getattr(config, k) if v is None else v for k, v in given.items()})  # type: ignore[arg-type]


def _split(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


def options(config: Config) -> Options:
    from paramedic.knowledge.priors import Setting
    from paramedic.pipeline import Options

    folders = tuple(Path(folder) for folder in config.rules)
    return Options(folders, config.select, config.ignore, cast(Setting, config.setting))


def write_report(report: Report, args: argparse.Namespace, config: Config) -> None:
    from paramedic.report import render

    if args.output:
        write_file(args.output, render(report, config.format, verbose=args.verbose))
        if not args.quiet:
            print(f"paramedic: wrote {args.output}", file=sys.stderr)
    elif args.quiet:
        return
    elif config.format == "text":
        from rich.console import Console

        from paramedic.report.text import render as render_text

        console = Console()
        if not console.is_terminal:  # a file or a pipe has no width: keep lines whole enough to read
            console = Console(width=int(os.environ.get("COLUMNS") or 100))
        render_text(report, console, verbose=args.verbose)
    else:
        sys.stdout.write(render(report, config.format, verbose=args.verbose))


def write_file(path: str, text: str) -> None:
    """Whole or not at all: written beside its place, then moved there."""
    target = Path(path)
    new = target.with_name(target.name + ".new")
    try:
        new.write_text(text, "utf-8", errors="replace")
        new.replace(target)
    except OSError as error:
        raise ParamedicError(f"{path}: cannot be written: {error.strerror}") from None


def exit_code(report: Report, fail_on: str) -> int:
    if not report.run.sources:
        return 3
    if fail_on == "never":
        return 0
    floor = SEVERITIES.index(fail_on)  # type: ignore[arg-type]
    return int(any(SEVERITIES.index(finding.severity) >= floor for finding in report.findings))


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """On stderr, only on a terminal, only for work over a second."""
    if not sys.stderr.isatty():
        yield None
        return
    import time

    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    start, read, files = time.monotonic(), 0, 0
    bar = Bar(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=Console(stderr=True), transient=True)
    task = bar.add_task("reading")

    def advance(name: str, size: int) -> None:
        nonlocal read, files
        read, files = read + size, files + 1
        bar.update(task, description=f"reading: {files} files, {read / 1e6:,.0f} MB")
        if not bar.live.is_started and time.monotonic() - start > 1:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()

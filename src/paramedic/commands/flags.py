"""The flags that verbs share, the config file behind them, and how a report leaves the program."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from paramedic.config import CHOICES, Config, load_config
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
    group.add_argument(
        "--fail-on", choices=CHOICES["fail_on"], help="lowest severity that gives exit code 1 (default: error)"
    )
    add_rule_flags(parser)


def add_rule_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("rules")
    group.add_argument("--select", metavar="ID,…", help="only these rules, prefixes (MEM) or symptoms")
    group.add_argument("--ignore", metavar="ID,…", help="all but these")
    add_rules_folder(group)
    add_setting(group)


def add_setting(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--setting", choices=CHOICES["setting"], help="base rates of a lab or a production cluster (default: lab)"
    )


def add_rules_folder(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--rules", metavar="DIR", action="append", help="a folder with your team's own rules; may be repeated"
    )


def settings(args: argparse.Namespace) -> Config:
    """Flags over environment over file over defaults."""
    config = load_config(_here())
    flags = vars(args)
    given: dict[str, Any] = {
        "format": flags.get("format"),
        "fail_on": flags.get("fail_on"),
        "setting": flags.get("setting"),
        "select": _split(flags.get("select")),
        "ignore": _split(flags.get("ignore")),
        "rules": tuple(flags.get("rules") or ()) or None,
    }
    return replace(config, **{key: value for key, value in given.items() if value is not None})


def _here() -> Path:
    try:
        return Path.cwd()
    except OSError:  # removed under our feet: there is no config file to be found from here
        return Path(os.sep)


def _split(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


def options(config: Config) -> Options:
    from paramedic.knowledge.priors import Setting
    from paramedic.pipeline import Options

    folders = tuple(Path(folder) for folder in config.rules)
    return Options(folders, config.select, config.ignore, cast(Setting, config.setting))


def write_report(report: Report, args: argparse.Namespace, config: Config) -> None:
    from paramedic.report import render

    if args.output not in (None, "-"):
        write_file(args.output, render(report, config.format, verbose=args.verbose))
        if not args.quiet:
            print(f"paramedic: wrote {args.output}", file=sys.stderr)
    elif args.quiet:
        return
    elif config.format == "text":
        _print_text(report, args.verbose)
    else:
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if reconfigure:  # a document for machines is UTF-8, whatever the terminal's locale
            reconfigure(encoding="utf-8", errors="backslashreplace")
        sys.stdout.write(render(report, config.format, verbose=args.verbose))


def _print_text(report: Report, verbose: bool) -> None:
    from rich.console import Console

    from paramedic.report.text import render as render_text

    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width: keep lines whole enough to read
        columns = os.environ.get("COLUMNS", "")
        console = Console(width=min(max(int(columns), 40), 1000) if columns.isascii() and columns.isdigit() else 100)
    render_text(report, console, verbose=verbose)


def write_file(path: str, text: str) -> None:
    """Whole or not at all."""
    from paramedic.run_folder import whole

    with whole(path) as file:
        file.write(text.encode("utf-8", "replace"))


def exit_code(report: Report, fail_on: str) -> int:
    if not report.run.sources:
        return 3
    if fail_on == "never":
        return 0
    floor = SEVERITIES.index(fail_on)
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
    bar = Bar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
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

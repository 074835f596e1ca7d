"""The flags that verbs share, the config file behind them, and how a report leaves the program."""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

from paramedic.config import CHOICES, Config, configured
from paramedic.errors import ParamedicError
from paramedic.model import SEVERITIES, Report, Skipped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from paramedic.collect.files import Progress
    from paramedic.pipeline import Options

_TEXT = (".txt", ".text", ".log", ".out", ".md")
_FORMATS = {".html": "html", ".json": "json", ".sarif": "sarif", ".sarif.json": "sarif"}


def say(text: str) -> None:
    """On standard error. Where that is closed (`2>&-`) it is None, and `print` would take standard output instead."""
    if sys.stderr is not None:
        print(text.rstrip("\n"), file=sys.stderr)


def add_report_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--format", choices=CHOICES["format"], help="how to print the report (default: text, or as FILE is called)"
    )
    group.add_argument(
        "--output", metavar="FILE", help="write it there instead of to standard output; .html, .json, .sarif say how"
    )
    group.add_argument("-q", "--quiet", action="store_true", help="print nothing; the exit code is the answer")
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


def settings(args: argparse.Namespace, formats: Mapping[str, str] = _FORMATS) -> Config:
    """Flags over environment over file over defaults."""
    flags, chosen = vars(args), configured(_here())
    if "format" in flags and not (flags["format"] or chosen.get("format")):
        _refuse_unknown_ending(flags.get("output"), formats)
    given: dict[str, Any] = {
        "format": flags.get("format") or chosen.get("format") or format_of(flags.get("output"), formats),
        "fail_on": flags.get("fail_on"),
        "setting": flags.get("setting"),
        "select": _split(flags.get("select")),
        "ignore": _split(flags.get("ignore")),
        "rules": tuple(flags.get("rules") or ()) or None,
    }
    config = Config(**chosen | {key: value for key, value in given.items() if value is not None})
    return replace(config, select=tuple(map(_id, config.select)), ignore=tuple(map(_id, config.ignore)))


def format_of(output: str | None, formats: Mapping[str, str]) -> str | None:
    """By the end of the output file's name; the longest that fits."""
    fitting = [ending for ending in formats if output is not None and output.lower().endswith(ending)]
    return formats[max(fitting, key=len)] if fitting else None


def _refuse_unknown_ending(output: str | None, formats: Mapping[str, str]) -> None:
    """A table that was asked for by its name must not be written as text."""
    ending = os.path.splitext(output or "")[1].lower()
    if ending and ending not in (*_TEXT, *formats):
        known = ", ".join((*formats, ".txt"))
        raise ParamedicError(f"{output}: no format is called {ending}; there are {known}, or name one with --format")


def _id(name: str) -> str:
    """A rule's id or prefix in capitals, however it was typed; a symptom, which has a hyphen, as it is."""
    return name.upper() if re.fullmatch(r"[a-z]+[0-9]*", name, re.I | re.A) else name


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
    return Options(folders, config.select, config.ignore, cast(Setting, config.setting), config.allow)


def write_report(report: Report, args: argparse.Namespace, config: Config) -> None:
    from paramedic.report import render

    if args.output not in (None, "-"):
        write_file(args.output, render(report, config.format, verbose=args.verbose))
        if not args.quiet:
            say(f"paramedic: wrote {args.output}")
    elif args.quiet or sys.stdout is None:
        return
    elif config.format == "text":
        print_text(report, args.verbose)
    else:
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if reconfigure:  # a document for machines is UTF-8, whatever the terminal's locale
            reconfigure(encoding="utf-8", errors="backslashreplace")
        sys.stdout.write(render(report, config.format, verbose=args.verbose))


def print_text(report: Report, verbose: bool = False) -> None:
    from paramedic.report.text import render as render_text

    render_text(report, console(), verbose=verbose)


def console(file: IO[str] | None = None) -> Console:
    """A file or a pipe has no width: keep lines whole enough to read."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            """Rich would end with 1, which here means that something was found."""
            raise BrokenPipeError

    made = Piped(file=file)
    if made.is_terminal:
        return made
    columns = os.environ.get("COLUMNS", "")
    wide = min(max(int(columns), 40), 1000) if columns.isascii() and columns.isdigit() else 100
    return Piped(file=file, width=wide)


def print_table(table: Table, width: int) -> None:
    """As wide as the terminal; a file or a pipe has no width of its own."""
    made = console()
    if not made.is_terminal:
        made.width = width
    made.print(table)


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
    if sys.stderr is None or not sys.stderr.isatty():
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


@contextmanager
def interruptible(paths: list[str]) -> Iterator[list[Skipped]]:
    """While `-` is read, Ctrl-C is the end of the input; a second one, or one before any input, ends the program.

    What was skipped for it stands in the list afterwards.
    """
    skipped: list[Skipped] = []
    if "-" not in paths or sys.stdin is None or sys.stdin.buffer.seekable():
        yield skipped  # a file comes to its end by itself
        return
    import threading

    before, stream = sys.stdin, _UntilInterrupt(sys.stdin.buffer)
    handler = signal.getsignal(signal.SIGINT)
    # Not where it is ignored, as in the background of a script, and not where it is somebody else's.
    mine = handler is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    sys.stdin = io.TextIOWrapper(io.BufferedReader(stream))
    try:
        if mine:
            signal.signal(signal.SIGINT, stream.interrupt)
        yield skipped
    finally:
        if mine:
            signal.signal(signal.SIGINT, handler)
        sys.stdin = before
    if stream.interrupted:
        skipped.append(Skipped("-", "interrupted: what came before was used"))


class _UntilInterrupt(io.RawIOBase):
    def __init__(self, inner: BinaryIO) -> None:
        self._inner = cast(io.BufferedReader, inner)
        self._any = self._waiting = self._ended = self.interrupted = False

    def readable(self) -> bool:
        return True

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._ended or self.interrupted or not self._any:
            raise KeyboardInterrupt
        self.interrupted = True
        if self._waiting:
            raise KeyboardInterrupt

    def readinto(self, buffer: Any) -> int:
        if self.interrupted:
            return 0
        got = 0
        try:
            self._waiting = True
            got = self._inner.readinto1(buffer)
        except KeyboardInterrupt:
            if not self.interrupted:
                raise
        finally:
            self._waiting = False
        self._any, self._ended = self._any or got > 0, got == 0
        return got
